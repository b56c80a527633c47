"""OpenRLHF: what its runs log. Imported, not driven.

Read in releases 0.9.8 to 0.11.0: openrlhf/trainer/ppo_trainer.py (fit, train_step), ppo_trainer_async.py (fit) and
openrlhf/utils/logging_utils.py (WandbLogger.log_train). Releases before 0.9.8 have no timers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from trainers.logs.dictionary_lines import console_rows, imported_rows
from trainers.logs.log_files import Printout, printouts
from trainers.logs.record import TIMERS, Imported
from trainers.logs.step_names import StepNames
from trainers.protocol import LogFormat, Trainer
from trainers.timers.tree import Phase, TimerTree, keyed, overlapping_tree

FORMAT = "openrlhf-console"
_SERIES = ("0.9.8", "0.9.9", "0.9.10", "0.10", "0.11")
_PARTS = tuple(TIMERS + name for name in ("generation", "make_experience", "ppo_train", "broadcast"))
_TOTAL = TIMERS + "step_total"
OVERLAPS = "openrlhf/overlaps"
_LINE = re.compile(r"\bGlobal step (\d{1,18}): (?=\{')")
_WORD = "Global step "


def _overlap_mark(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """The synchronous loop's total is the exact sum of its parts; the asynchronous loop's is a wall clock."""
    if _TOTAL not in numbers or not all(part in numbers for part in _PARTS):
        return {}
    summed = sum(value for name, value in numbers.items() if name.startswith(TIMERS) and name != _TOTAL)
    return {} if math.isclose(numbers[_TOTAL], summed, rel_tol=1e-9) else {OVERLAPS: 1.0}


NAMES = StepNames(
    mark="train/timing/step_total",
    counter="train/global_step",
    total="step_total",
    timers=(("train/timing/", ""),),
    derived=_overlap_mark,
)
_PHASES = (
    Phase(
        "step",
        "Step",
        "The sum of the four timers below: no clock covers the whole step. Dispatching the batch, logging, "
        "checkpoints, evaluations and generations whose samples were all filtered out are in none.",
        "other",
        ("step_total",),
    ),
    keyed(
        "generation",
        "Generate",
        "Wakes the engines, generates the responses, and scores them if the reward is a function or a server.",
        "generation",
    ),
    keyed(
        "make_experience",
        "Make experience",
        "Log-probabilities of policy and reference, values and a reward model's scores; then advantages.",
        "log-probs",
    ),
    keyed("ppo_train", "Train", "Updates of the policy and the critic.", "loss+backward"),
    keyed("broadcast", "Broadcast", "Wakes the engines and sends them the new weights.", "weight sync"),
)


def _trees(series: str) -> tuple[TimerTree, TimerTree]:
    source = f"OpenRLHF {series} openrlhf/trainer/ppo_trainer"
    unclocked = "OpenRLHF's step is the sum of four timers, and what lies between them is in none"
    return (
        TimerTree("openrlhf", series, ("vllm",), _PHASES, f"{source}.py (fit, train_step)", unclocked=unclocked),
        overlapping_tree(
            "openrlhf",
            series,
            ("vllm",),
            f"{source}_async.py (fit)",
            ("step_total",),
            "Wall clock of one iteration of the trainer, with its wait for samples.",
            mode="async",
            overlap="the next responses are generated while this step trains",
            marks=(OVERLAPS,),
        ),
    )


def read_console(path: Path) -> Imported:
    """The steps of OpenRLHF's console under wandb's names; lines without `timing/step_total` are not steps."""
    return imported_rows(console_rows(printouts(path), _WORD, _LINE), path, FORMAT, NAMES, "train/")


def _is_step(part: Printout) -> bool:
    return _WORD in part.text and _LINE.search(part.text) is not None


OPENRLHF = Trainer(
    name="openrlhf",
    label="OpenRLHF",
    engines=("vllm",),
    trees=tuple(tree for series in _SERIES for tree in _trees(series)),
    loop=lambda version, settings: "async" if settings.get("async_train") is True else "",
    formats=(
        LogFormat(
            FORMAT, "OpenRLHF's console, with lines Global step 3: {'timing/step_total': ...}", read_console, _is_step
        ),
    ),
    rows=NAMES,
    quantities={
        "reward": ("train/rollout/reward_mean", "train/reward"),
        "mean_response_length": ("train/rollout/response_length_mean", "train/response_length"),
    },
)
