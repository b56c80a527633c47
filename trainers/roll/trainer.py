"""ROLL: what its runs log to wandb. Imported, not driven; its console is not read.

Read in releases 0.1.3 to 0.3.0: roll/pipeline/rlvr/rlvr_pipeline.py, roll/pipeline/agentic/agentic_pipeline.py (run).
The first logs the `time/step_total` of the step before, the second that of the step itself, and no row names its
pipeline. So a step is the wall clock from one logged step to the next. wandb counts steps from 0: its step 0 is step 1
here.
"""

from __future__ import annotations

import re

from trainers.logs.step_names import StepNames
from trainers.protocol import Trainer, UnreadConsole
from trainers.timers.tree import overlapping_tree

_ENGINES = ("vllm", "sglang")

ROLL = Trainer(
    name="roll",
    label="ROLL",
    engines=_ENGINES,
    keys={
        "engine": ("actor_infer.strategy_args.strategy_name",),
        "model": ("pretrain",),
        "prompts": ("rollout_batch_size",),
        "num_generations": ("num_return_sequences_in_group",),
    },
    trees=tuple(
        overlapping_tree(
            "roll",
            series,
            _ENGINES,
            f"ROLL {series} roll/pipeline/rlvr/rlvr_pipeline.py, roll/pipeline/agentic/agentic_pipeline.py (run)",
            ("wall",),
            "Wall clock from one logged step to the next, with checkpoints and evaluations.",
            overlap="its pipelines may generate while they train (async_pipeline, async_generation_ratio); rows do "
            "not show whether they did",
        )
        for series in ("0.1.3", "0.2", "0.3")
    ),
    rows=StepNames(mark="time/step_total", counter="_step", total="wall", timers=(("time/", ""),), first=0),
    # 0.1.3 to 0.3.0 (run).
    unread=UnreadConsole("pipeline ", re.compile(r"\bpipeline (?:rollout global )?step \d+ (?:start\.\.\.|finished)")),
    quantities={
        "reward": ("critic/score/mean",),
        "mean_response_length": ("tokens/response_length/mean",),
        "max_response_length": ("tokens/response_length/max",),
    },
)
