"""Composes many cases in a Python with verl: `python composing.py VERSION CASES OUT`, with the root on the path.

CASES is JSON: name -> list of overrides. OUT gets name -> {"config", "error", "verl"}: what was composed, what we
refuse (or null), and what verl's own validation says of it (null if it takes the settings). verl and torch are imported
only after all was composed without. What refers to what is told as
verl's files say it; 0.9.1 adds the fields of its dataclasses, by our reader and by Python itself.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import yaml

# This file's folder has a `verl` and a `trl` of its own, which are no stack's.
sys.path.remove(str(Path(__file__).parent))

from common.errors import UserError
from node.hardware import importing
from trainers.verl.driver.composed import _config_folder, check, compose, flat
from trainers.verl.driver.keys import fields


def main(version: str, cases: Path, out: Path) -> None:
    # Hydra reads verl's files anew for each case, with a class made from this one: PyYAML's in C reads the same.
    yaml.SafeLoader = yaml.CSafeLoader
    results: dict[str, dict[str, Any]] = {}
    for name, overrides in json.loads(cases.read_text(encoding="utf-8")).items():
        result = results[name] = {"config": None, "error": None}
        try:
            result["config"] = compose(version, overrides)
            check(version, result["config"])
        except UserError as error:
            result["error"] = str(error)
    assert "torch" not in sys.modules, "composing must not need torch"
    for result in results.values():
        result["verl"] = _verl_says(version, result["config"]) if result["config"] else None
    results["references"] = _references(version)
    if version == "0.9.1":
        results["fields of dataclasses"] = {target: _fields(target) for target in _TARGETS}
    out.write_text(json.dumps(results), encoding="utf-8")


def _verl_says(version: str, config: dict[str, Any]) -> str | None:
    warnings.simplefilter("ignore")
    from omegaconf import OmegaConf

    asked = OmegaConf.create(config)
    reference = config["actor_rollout_ref"]["actor"]["use_kl_loss"]
    try:
        if version == "0.4.1":
            with importing():
                from verl.trainer.ppo.ray_trainer import RayPPOTrainer

            trainer = types.SimpleNamespace(config=asked, use_reference_policy=reference, use_critic=False)
            RayPPOTrainer._validate_config(trainer)
        else:
            with importing():
                from verl.utils.config import omega_conf_to_dataclass, validate_config

            validate_config(asked, use_reference_policy=reference, use_critic=False)
            omega_conf_to_dataclass(asked.actor_rollout_ref.rollout)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _references(version: str) -> dict[str, str]:
    """Setting -> the one that it follows, as verl's files say it; of a section, each setting in it."""
    import hydra
    from omegaconf import OmegaConf

    with hydra.initialize_config_dir(config_dir=str(_config_folder(version)), version_base=None):
        config = hydra.compose("ppo_trainer")
    resolved = flat(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
    found = {}
    for key, value in flat(OmegaConf.to_container(config, resolve=False)).items():  # type: ignore[arg-type]
        if isinstance(value, str) and (one := re.match(r"\$\{(?:oc\.select:)?\s*(\.?[\w.]+)", value)):
            target = key.rpartition(".")[0] + one[1] if one[1].startswith(".") else one[1]
            found |= {k: target + k[len(key) :] for k in resolved if k == key or k.startswith(f"{key}.")}
    return found


_TARGETS = [
    f"verl.workers.config.{name}" for name in ("FSDPActorConfig", "RolloutConfig", "HFModelConfig", "MtpConfig")
]
_TARGETS += ["verl.workers.config.FSDPEngineConfig", "verl.workers.config.FSDPOptimizerConfig"]


def _fields(target: str) -> tuple[list[str], list[str]]:
    """As read from the source, and as the class has them."""
    import verl

    module, _, name = target.rpartition(".")
    real = {field.name for field in dataclasses.fields(getattr(importlib.import_module(module), name)) if field.init}
    return sorted(fields(Path(verl.__file__).parent, target) or ()), sorted(real - {"_target_"})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
