"""prime-rl: what its trainer logs to wandb. It is imported, not driven; its console is not read.

Read in releases 0.4.0 to 0.8.0: src/prime_rl/trainer/rl/train.py (train: time_metrics) and src/prime_rl/utils/monitor/
wandb.py (log). Trainer and orchestrator are two processes and two runs of wandb; the trainer's is read, whose clock
`time/step` holds the wait for a batch. Where a release counts from 0, its step 0 is left out: it warms up.
"""

from __future__ import annotations

import re

from trainers.logs.step_names import StepNames
from trainers.protocol import Trainer, UnreadConsole
from trainers.timers.tree import TimerTree, overlapping_tree

_ENGINES = ("vllm",)
_SERIES = ("0.4", "0.5", "0.6", "0.7", "0.8")
NAMES = StepNames(
    # The orchestrator and runs of SFT log `time/step` too, and never this one.
    mark="time/wait_for_batch",
    counter="step",
    total="step",
    timers=(("time/", ""),),
)

# 0.4.0 to 0.8.0: train.py and src/prime_rl/orchestrator/orchestrator.py (step_message).
_CONSOLE = UnreadConsole(" | ", re.compile(r"\bStep \d+ \| +(?:Time: )?\d[\d.smhd ]* \| (?:Loss|Reward):? -?\d"))


def _tree(series: str) -> TimerTree:
    """A step of the trainer; its other timers are kept beside it.

    `wait_for_batch` and `load_data` begin it, and `forward_backward` follows. The orchestrator's rows are of its own
    run and its own clock, and no row tells which of its steps made a batch.
    """
    return overlapping_tree(
        "prime-rl",
        series,
        _ENGINES,
        f"prime-rl {series} src/prime_rl/trainer/rl/train.py (train)",
        ("step",),
        "Wall clock of one step of the trainer, with its wait for a batch.",
        overlap="the orchestrator has responses generated while the trainer trains",
    )


PRIME_RL = Trainer(
    name="prime-rl",
    engines=_ENGINES,
    keys={
        # Of the trainer's own configuration; what the orchestrator asks of its engines stands in the other run.
        "model": ("model.name",),
        "learning_rate": ("optim.lr",),
        "steps": ("max_steps",),
    },
    trees=tuple(_tree(series) for series in _SERIES),
    rows=NAMES,
    unread=_CONSOLE,
    # Rewards and lengths are in the orchestrator's run, which is another one of wandb.
)
