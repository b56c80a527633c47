"""In verl's Python: the rows of each step with verl's own sampler and loader, uninterrupted and resumed with our hook.

`python order_of_data.py VERSION FOLDER` leaves order.json: {"whole": [rows, ...], "resumed": {step: [rows, ...]}}.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader

STEPS = 17


def trainer_of(version, folder, rows):
    from trainers.verl.driver.step_hooks import StepHooks

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


def main(version, folder):
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
    (folder / "order.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
