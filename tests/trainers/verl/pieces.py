"""In verl's Python: pieces that need no Ray, with our hooks; `python pieces.py VERSION FOLDER` leaves told.json.

- `order`: the rows of each step with verl's own sampler and loader, uninterrupted, and resumed at each step.
- `late`: what a loop does that is asked to stop in step 5, when that step's place to save has passed.
- `seeds`: those of a run's first engine in two attempts, as verl's own class of the rollout's settings has them.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.utils.tracking import Tracking

from trainers.verl.driver.composed import compose
from trainers.verl.driver.step_hooks import StepHooks
from trainers.verl.driver.train import _config

STEPS = 17


def trainer_of(version, folder, rows):
    if version == "0.4.1":
        from verl.trainer.main_ppo import create_rl_sampler
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer as Trainer
    else:
        from verl.trainer.ppo.utils import create_rl_sampler
        from verl.trainer.ppo.v1 import PPOTrainer as Trainer
    kind = type("Trainer", (Trainer,), {"__init__": lambda self: None})
    kind.__abstractmethods__ = frozenset()
    StepHooks(folder).install(kind)
    trainer = kind()
    settings = {"resume_mode": "auto", "default_local_dir": str(folder), "default_hdfs_dir": None}
    data = OmegaConf.create({"shuffle": True, "seed": 1})
    trainer.config = OmegaConf.create({"trainer": settings | {"del_local_ckpt_after_load": False}, "data": data})
    trainer.actor_rollout_wg = SimpleNamespace(load_checkpoint=lambda *_, **__: None)
    trainer.use_critic, trainer.global_steps, trainer.trainer_mode = False, 0, "sync"
    trainer.train_dataloader = StatefulDataLoader(
        list(range(rows)), 2, drop_last=True, collate_fn=list, sampler=create_rl_sampler(data, list(range(rows)))
    )
    return trainer


def train(trainer, folder, stop_at):
    """The rows from the newest checkpoint to a step, which is saved."""
    trainer._load_checkpoint()
    taken = []
    while True:
        for batch in trainer.train_dataloader:
            taken.append(batch)
            trainer.global_steps += 1
            if trainer.global_steps == stop_at:
                saved = folder / f"global_step_{stop_at}"
                saved.mkdir(parents=True, exist_ok=True)
                torch.save(trainer.train_dataloader.state_dict(), saved / "data.pt")
                (folder / "latest_checkpointed_iteration.txt").write_text(str(stop_at))
                return taken


def order_of_data(version, folder):
    told = {}
    for rows in (10, 11):  # complete passes of 5 steps, without and with a row left over
        whole = train(trainer_of(version, folder / f"{rows}-whole", rows), folder / f"{rows}-whole", STEPS)
        resumed = {}
        for step in range(1, STEPS):
            # Two interruptions: at that step, and one step later.
            at = folder / f"{rows}-{step}"
            stops = (step, *([step + 1] if step + 1 < STEPS else []), STEPS)
            resumed[step] = [batch for stop in stops for batch in train(trainer_of(version, at, rows), at, stop)]
        told[rows] = {"whole": whole, "resumed": resumed}
    return told


def late_stop(folder):
    """The steps that are logged, and those that are saved; the engine sleeps only if it is told to."""
    hooks = StepHooks(folder)
    rollout = {"top_p": 1.0, "top_k": -1, "n": 1, "response_length": 8, "multi_turn": {"enable": True}}

    class Trainer:
        # What the engine says is what is trained on: verl compares them itself, and a 0 would be no comparison.
        config = OmegaConf.create(
            {
                **{"trainer": {"save_freq": -1}, "data": {"train_batch_size": 2}},
                "algorithm": {"rollout_correction": {"bypass_mode": True}},
                "actor_rollout_ref": {"rollout": rollout},
            }
        )
        total_training_steps, saved, asleep = 9, (), False

        def __init__(self):
            self.checkpoint_manager = self

        def fit(self):
            assert hooks._batch._mismatch is None
            tracking = Tracking("tests", "late", ["console"], {})
            tracking.log({"val-core/acc/mean@1": 0.25}, step=3)
            for step in range(4, 10):
                self.global_steps = step
                if step == 5:
                    (folder / "stop").touch()
                tracking.log({"training/global_step": step, "timing_s/step": 1.0}, step=step)

        def sleep_replicas(self):
            self.asleep = True

        def _load_checkpoint(self):
            raise AssertionError("nothing is loaded here")

        def _save_checkpoint(self):
            assert self.asleep
            self.saved = (*self.saved, self.global_steps)

    hooks.install(Trainer)
    trainer = Trainer()
    trainer.fit()
    trainer.fit()  # asked before its first step: there is nothing to save
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"logged": [[line["step"], line["resumed"]] for line in lines], "saved": trainer.saved}


def seeds(version):
    plain = compose(version, ["actor_rollout_ref.rollout.name=vllm"])
    if version == "0.4.1":
        return ["seed" in _config(plain, at).actor_rollout_ref.rollout for at in (None, 20)]
    from verl.utils.config import omega_conf_to_dataclass

    return [omega_conf_to_dataclass(_config(plain, at).actor_rollout_ref.rollout).seed for at in (None, 20)]


def main(version, folder):
    (folder / "late").mkdir()
    # First: each loop's hooks stay.
    told = {"late": late_stop(folder / "late"), "order": order_of_data(version, folder), "seeds": seeds(version)}
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
