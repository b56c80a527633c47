"""AReaL: what its runs log to wandb. Imported, not driven; its console is not read.

Read in releases 0.4.0 to 1.0.4: areal/utils/stats_tracker.py (record_timing) and stats_logger.py (commit), in 1.0
areal/trainer/rl_trainer.py (train). No timer covers a whole step, and generation never waits for training: a step is
the wall clock from one logged step to the next. wandb counts steps from 0: its step 0 is step 1 here. Up to 0.3 its
trainer is realhf, which logs other names.
"""

from __future__ import annotations

import re

from trainers.logs.step_names import StepNames
from trainers.protocol import Trainer, UnreadConsole
from trainers.timers.tree import overlapping_tree

_ENGINES = ("sglang", "vllm")

AREAL = Trainer(
    name="areal",
    label="AReaL",
    engines=_ENGINES,
    keys={
        "model": ("actor.path",),
        "prompts": ("train_dataset.batch_size",),
        "num_generations": ("gconfig.n_samples",),
        "max_response_length": ("gconfig.max_new_tokens",),
        "temperature": ("gconfig.temperature",),
        "top_p": ("gconfig.top_p",),
    },
    trees=tuple(
        overlapping_tree(
            "areal",
            series,
            _ENGINES,
            f"AReaL {series} areal/utils/stats_tracker.py, stats_logger.py",
            ("wall",),
            "Wall clock from one logged step to the next, with checkpoints and evaluations.",
            overlap="responses are generated while steps train (its `rollout` is waiting for a batch)",
        )
        for series in ("0.4", "0.5", "1.0")
    ),
    rows=StepNames(mark="timeperf/rollout", counter="_step", total="wall", timers=(("timeperf/", ""),), first=0),
    # 0.4.0 to 1.0.4: areal/utils/stats_logger.py (commit).
    unread=UnreadConsole("Train step ", re.compile(r"Epoch \d+/\d+ Step \d+/\d+ Train step \d+/\d+ done")),
    # Its `seq_len` includes the prompt, so it is not a response length.
    quantities={"reward": ("ppo_actor/task_reward/avg", "grpo_actor/task_reward/avg")},
)
