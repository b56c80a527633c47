"""In verl 0.9.1's Python: what its own code says of settings, and the GPUs that its pools take.

`python loops.py CASES OUT`: CASES is JSON, name -> Hydra overrides. OUT gets name -> {"ours", "verl", "gpus"}: our
refusals, the first error of verl's own assertions (or null), and the GPUs of all its pools (or null after an error).
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from omegaconf import OmegaConf

from trainers.verl.driver.composed import compose, flat
from trainers.verl.driver.rules import problems
from trainers.verl.releases import release_named


def asserted(config: Any) -> int:
    """Calls verl's assertions as a run does, as far as they need no GPU; the GPUs of its pools."""
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.workers.rollout.replica import RolloutReplica

    validate_config(config, use_reference_policy=False, use_critic=False)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    gpus = _of_v1(config) if config.trainer.use_v1 else _legacy(config)
    with patch.object(RolloutReplica, "__abstractmethods__", frozenset()):
        RolloutReplica(0, config.actor_rollout_ref.rollout, None, rollout.n_gpus_per_node)
    return gpus


def _of_v1(config: Any) -> int:
    from verl.trainer.ppo.v1 import PPOTrainer, get_trainer_cls

    mode = config.trainer.v1.trainer_mode
    with patch.object(PPOTrainer, "__init__", lambda self, config: setattr(self, "config", config)):
        trainer = get_trainer_cls(mode)(config)
    trainer.trainer_mode = mode
    trainer.parameter_sync_step = config.trainer.v1.get(mode, {}).get("parameter_sync_step", 1)
    trainer.replay_buffer = trainer._build_replay_buffer()
    with patch.object(trainer, "prepare_step", side_effect=_Stopped), suppress(_Stopped):
        trainer.step({}, {})
    trainer._init_resource_pool_mgr()
    gpus = _sum(trainer.resource_pool_manager)
    if hasattr(trainer, "_init_hybrid_rollout_state"):
        trainer._init_hybrid_rollout_state()  # divides the sum of both pools by the engines'
        rollout = config.actor_rollout_ref.rollout
        gpus += round((trainer._scaling_factor - 1) ** -1 * gpus) if trainer._scaling_factor > 1 else 0
        assert gpus == round(trainer._scaling_factor * rollout.nnodes * rollout.n_gpus_per_node)
    return gpus


def _legacy(config: Any) -> int:
    from verl.trainer.main_ppo_v0 import TaskRunner
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.utils import Role

    # It reads the data next.
    with patch.object(RayPPOTrainer, "_create_dataloader", side_effect=_Stopped), suppress(_Stopped):
        RayPPOTrainer(config, None, dict.fromkeys(Role), MagicMock())
    runner: Any = object.__new__(
        getattr(TaskRunner, "__ray_metadata__", SimpleNamespace(modified_class=TaskRunner)).modified_class
    )
    runner.mapping = {}
    return _sum(runner.init_resource_pool_mgr(config))


def _sum(manager: Any) -> int:
    return sum(sum(nodes) for nodes in manager.resource_pool_spec.values())


class _Stopped(Exception):
    """verl has passed the assertions that need no more than settings."""


def main(cases: Path, out: Path) -> None:
    warnings.simplefilter("ignore")
    found = {}
    for name, overrides in json.loads(cases.read_text()).items():
        config = compose("0.9.1", overrides)
        ours = [(one.code, one.text, one.source) for one in problems(release_named("0.9.1"), flat(config))]
        said, gpus = None, None
        try:
            gpus = asserted(OmegaConf.create(config))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        found[name] = {"ours": ours, "verl": said, "gpus": gpus}
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
