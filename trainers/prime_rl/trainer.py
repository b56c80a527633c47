"""prime-rl: what its trainer logs to wandb. Imported, not driven; its console is not read.

Read in releases 0.4.0 to 0.8.0: src/prime_rl/trainer/rl/train.py (train: time_metrics) and src/prime_rl/utils/monitor/
wandb.py (log). Trainer and orchestrator are two processes and two wandb runs. The trainer's is read: its clock
`time/step` includes `wait_for_batch`. The orchestrator has its own clock, and no row says which of its steps made a
batch. Where a release counts from 0, its step 0 is a warm-up and left out.
"""

from __future__ import annotations

import re

from trainers.logs.step_names import StepNames
from trainers.protocol import Trainer, UnreadConsole
from trainers.timers.tree import overlapping_tree

PRIME_RL = Trainer(
    name="prime-rl",
    engines=("vllm",),
    # Keys of the trainer's own configuration; the orchestrator's run has the engine's settings.
    keys={"model": ("model.name",), "learning_rate": ("optim.lr",), "steps": ("max_steps",)},
    trees=tuple(
        overlapping_tree(
            "prime-rl",
            series,
            ("vllm",),
            f"prime-rl {series} src/prime_rl/trainer/rl/train.py (train)",
            ("step",),
            "Wall clock of one step of the trainer, with its wait for a batch.",
            overlap="the orchestrator has responses generated while the trainer trains",
        )
        for series in ("0.4", "0.5", "0.6", "0.7", "0.8")
    ),
    # The orchestrator and SFT runs also log `time/step`, but never this mark.
    rows=StepNames(mark="time/wait_for_batch", counter="step", total="step", timers=(("time/", ""),)),
    # 0.4.0 to 0.8.0: train.py and src/prime_rl/orchestrator/orchestrator.py (step_message).
    unread=UnreadConsole(" | ", re.compile(r"\bStep \d+ \| +(?:Time: )?\d[\d.smhd ]* \| (?:Loss|Reward):? -?\d")),
)
"""Rewards and lengths are in the orchestrator's wandb run."""
