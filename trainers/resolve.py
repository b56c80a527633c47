"""What will a trainer's settings be, all of them? `python -m trainers.resolve --request FILE --out FILE`.

Runs in the stack, before anything waits for a GPU: an unknown setting or a bad value is told here, in one line.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from node.exit_codes import run
from node.records import read_json, write_json
from trainers.verl.driver.composed import flat

# What each attempt says for itself, or the machine that happens to resolve the settings.
_OF_AN_ATTEMPT = frozenset({"output_dir", "run_name", "logging_dir", "local_rank", "deepspeed_plugin", "_n_gpu"})


def resolved(request: Mapping[str, Any]) -> dict[str, Any]:
    """`{"trainer", "version", "settings"}` of a request of `trainer`, `trainer_args` and `rewards`.

    `settings` are flat, by dotted key. `UserError` for what the trainer would refuse.
    """
    trainer = request["trainer"]
    resolve = {"verl": _verl, "trl": _trl}.get(trainer)
    if resolve is None:
        raise UserError(f"the settings of trainer {trainer!r} cannot be resolved; known: verl, trl")
    version, settings = resolve(request)
    return {"trainer": trainer, "version": version, "settings": settings}


def _verl(request: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from trainers.verl.driver import composed as verl_config

    args = request["trainer_args"]
    config = verl_config.compose(args["version"], args["overrides"])
    verl_config.check(args["version"], config)
    return args["version"], _plain(flat(config))


def _trl(request: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from trainers.trl.driver.train import grpo_config, owned_settings

    args = dict(request["trainer_args"])
    weights = [float(reward.get("weight", 1.0)) for reward in request.get("rewards") or ()]
    elsewhere = {} if "use_cpu" in args or _has_gpu() else {"use_cpu": True}
    # Nothing is written: the paths only have to be there for the configuration to be whole.
    owned = owned_settings({"checkpoint_dir": "checkpoints", "run_id": "settings"})
    config = grpo_config({"reward_weights": weights, **args, **elsewhere}, owned)
    settings = {key: value for key, value in config.to_dict().items() if key not in _OF_AN_ATTEMPT | elsewhere.keys()}
    return importlib.metadata.version("trl"), _plain(flat(settings))


def _has_gpu() -> bool:
    """A login node has none, and transformers refuses bfloat16 there unless it is told to stay on the CPU."""
    import torch

    return bool(torch.cuda.is_available())


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): json.loads(json.dumps(value, default=str)) for key, value in sorted(settings.items())}


def main() -> None:
    """Read a request and write the settings that it comes to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    request = read_json(arguments.request, "the request")
    missing = [key for key in ("trainer", "trainer_args") if key not in request]
    if missing:
        raise UserError(f"{arguments.request} lacks {', '.join(missing)}")
    write_json(arguments.out, resolved(request))


if __name__ == "__main__":
    sys.exit(run(main))
