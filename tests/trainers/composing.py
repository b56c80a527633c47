"""Composes many cases in a Python with verl: `python -m tests.trainers.composing VERSION CASES OUT`.

CASES is JSON: name -> list of overrides. OUT gets name -> {"config", "error"}: what was composed, and what is refused
by us or by verl's own validation (or null). With a case of the version's name, verl's own, what refers to what is told
as verl's files say it.
"""

import json
import re
import sys
from pathlib import Path

import yaml

from common.dotted import flatten
from common.errors import UserError
from trainers.verl.driver.composed import _config_folder, check, compose


def main(version, cases, out):
    # Hydra reads verl's files anew for each case, with a class made from this one: PyYAML's in C reads the same.
    yaml.SafeLoader = yaml.CSafeLoader
    results = {}
    for name, overrides in json.loads(cases.read_text(encoding="utf-8")).items():
        result = results[name] = {"config": None, "error": None}
        try:
            result["config"] = compose(version, overrides)
            check(version, result["config"])
        except UserError as error:
            result["error"] = str(error)
    if version in results:  # verl's own configuration
        results["references"] = _references(version)
    out.write_text(json.dumps(results), encoding="utf-8")


def _references(version):
    """Setting -> the one that it follows, as verl's files say it; of a section, each setting in it."""
    import hydra
    from omegaconf import OmegaConf

    with hydra.initialize_config_dir(config_dir=str(_config_folder(version)), version_base=None):
        config = hydra.compose("ppo_trainer")
    resolved = flatten(OmegaConf.to_container(config, resolve=True))
    found = {}
    for key, value in flatten(OmegaConf.to_container(config, resolve=False)).items():
        if isinstance(value, str) and (one := re.match(r"\$\{(?:oc\.select:)?\s*(\.?[\w.]+)", value)):
            target = key.rpartition(".")[0] + one[1] if one[1].startswith(".") else one[1]
            found |= {k: target + k[len(key) :] for k in resolved if k == key or k.startswith(f"{key}.")}
    return found


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
