"""ROLL: what its runs log to wandb. It is imported, not driven; its console is not read.

Read in releases 0.1.3 to 0.3.0: roll/pipeline/rlvr/rlvr_pipeline.py, roll/pipeline/agentic/agentic_pipeline.py (run).
The `time/step_total` that the first logs is of the step before, and the second's is of the step itself; nothing in a
row tells which pipeline it is of. A step is therefore the wall clock from one logged step to the next. Steps count from
0 in wandb: its step 0 is step 1 here.
"""

from __future__ import annotations

import re

from trainers.logs.step_names import StepNames
from trainers.protocol import Trainer, UnreadConsole
from trainers.timers.tree import TimerTree, overlapping_tree

_ENGINES = ("vllm", "sglang")
_SERIES = ("0.1.3", "0.2", "0.3")
NAMES = StepNames(
    mark="time/step_total",
    counter="_step",
    total="wall",
    timers=(("time/", ""),),
    first=0,
)

# 0.1.3 to 0.3.0 (run).
_CONSOLE = UnreadConsole("pipeline ", re.compile(r"\bpipeline (?:rollout global )?step \d+ (?:start\.\.\.|finished)"))


def _tree(series: str) -> TimerTree:
    return overlapping_tree(
        "roll",
        series,
        _ENGINES,
        f"ROLL {series} roll/pipeline/rlvr/rlvr_pipeline.py, roll/pipeline/agentic/agentic_pipeline.py (run)",
        ("wall",),
        "Wall clock from one logged step to the next, with checkpoints and evaluations.",
        overlap="its pipelines may generate while they train (async_pipeline, async_generation_ratio), and rows do not "
        "tell whether they did",
    )


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
    trees=tuple(_tree(series) for series in _SERIES),
    rows=NAMES,
    unread=_CONSOLE,
    quantities={
        "reward": ("critic/score/mean",),
        "mean_response_length": ("tokens/response_length/mean",),
        "max_response_length": ("tokens/response_length/max",),
    },
)
