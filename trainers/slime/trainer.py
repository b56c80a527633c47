"""slime: what its runs log. It is imported, not driven.

Read in releases 0.2.0 to 0.3.1: slime/utils/{timer,train_metric_utils}.py, slime/backends/megatron_utils/actor.py,
slime/ray/rollout.py, train.py and train_async.py; in 0.2 slime/backends/fsdp_utils/actor.py too. Rollouts count from 0:
rollout 0 is step 1 here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from trainers.logs.dictionary_lines import PrintedRow, imported_rows, parse_row
from trainers.logs.log_files import Printout, printouts
from trainers.logs.printed import PrintedNumber
from trainers.logs.record import TIMERS, Imported
from trainers.logs.step_names import EVALUATION, StepNames
from trainers.protocol import LogFormat, Trainer
from trainers.timers.tree import Phase, TimerTree, keyed, overlapping_tree

FORMAT = "slime-console"
_ENGINES = ("sglang",)
_WAIT, _TRAIN = "step/train_wait", "step/train"
OVERLAPS = "slime/overlaps"
# `perf 3: {...}` of the trainer and of the rollout manager; `rollout 3: {...}` has rewards and lengths.
_LINE = re.compile(r"(?<![\w/])(?:perf|rollout) (\d{1,18}): (?=\{')")
_STEP = "'perf/step_time': "
_EVALUATED = re.compile(r"(?<![\w/])eval \d{1,18}: (?=\{')")


def _loop_told(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """A rollout that took longer than the trainer waited for it ran beside the training before (train_async.py)."""
    rollout, wait = (numbers.get(TIMERS + name) for name in ("rollout", "train_wait"))
    return {OVERLAPS: 1.0} if rollout is not None and wait is not None and rollout > wait else {}


NAMES = StepNames(
    mark="rollout/step",
    counter="rollout/step",
    total="step",
    timers=(("perf/", "_time"),),
    first=0,
    evaluated="eval/step",
    derived=_loop_told,
)


# Each is called while the clock `train_wait` runs, but for those in train_actor's block `train`.
_PHASES = (
    Phase("step", "Step", "The trainer's waiting and training, one after the other; rank 0.", "other", ("step",)),
    Phase(
        _WAIT,
        "Wait",
        "From the end of the training before to this one's: rollout, weights, and, untimed, evaluations.",
        "other",
        ("train_wait",),
    ),
    keyed(
        "rollout",
        "Rollout",
        "The rollout manager's clock: generation and rewards of the batch.",
        "generation",
        within=_WAIT,
    ),
    keyed(
        "update_weights",
        "Update weights",
        "Hands the weights of the step before to the engines.",
        "weight sync",
        within=_WAIT,
    ),
    keyed(
        "delta_encode", "Encode deltas", "Weights that changed (0.3).", "weight sync", within=f"{_WAIT}/update_weights"
    ),
    keyed("delta_finalize", "Publish deltas", "The same, made known.", "weight sync", within=f"{_WAIT}/update_weights"),
    keyed("wake_up", "Wake up", "The trainer takes its memory back.", within=_WAIT),
    keyed("sleep", "Sleep", "The trainer gives its memory to the engines, after the step before.", within=_WAIT),
    keyed("data_preprocess", "Preprocess data", "Fetches the samples and cuts them into micro-batches.", within=_WAIT),
    keyed(
        "save_model",
        "Save model",
        "The checkpoint of the step before, with waking and sleep.",
        within=_WAIT,
        occasional=True,
    ),
    keyed(
        EVALUATION,
        "Evaluation",
        "There was one, which no clock times: its seconds are in the wait's own.",
        within=_WAIT,
        occasional=True,
    ),
    Phase(_TRAIN, "Train", "Log-probabilities, advantages and the update.", "other", ("train",)),
    keyed("ref_log_probs", "Reference log-probs", "Under the frozen reference model.", "log-probs", within=_TRAIN),
    keyed("teacher_log_probs", "Teacher log-probs", "Under a teacher (distillation).", "log-probs", within=_TRAIN),
    keyed("log_probs", "Old log-probs", "Under the policy that wrote the responses.", "log-probs", within=_TRAIN),
    keyed("actor_train", "Update actor", "Forward, backward and the optimizer.", "loss+backward", within=_TRAIN),
)
# Statistics over samples that run at one time, and a copy of the weights whose wait is counted in the next step.
_BESIDE = (
    ("longest_*", "s", "*"),
    ("ref_model_update", "s", "next_step_s/*"),
)


def _tree(series: str) -> TimerTree:
    source = f"slime {series} slime/backends/megatron_utils/actor.py, slime/ray/rollout.py, train.py"
    return TimerTree("slime", series, _ENGINES, _PHASES, source, beside=_BESIDE)


def _async_tree(series: str) -> TimerTree:
    return overlapping_tree(
        "slime",
        series,
        _ENGINES,
        f"slime {series} train_async.py",
        ("step",),
        "The trainer's waiting and training, one after the other; rank 0.",
        mode="async",
        overlap="the next rollout is generated while this step trains (train_async.py)",
        marks=(OVERLAPS,),
    )


def _rows(parts: Iterable[Printout]) -> Iterator[PrintedRow]:
    """The rows of a console; an evaluation marks the trainer's next one."""
    evaluated = False
    for part in parts:
        if ": {'" not in part.text:
            continue
        if (found := _LINE.search(part.text)) is None:
            evaluated = evaluated or _EVALUATED.search(part.text) is not None
            continue
        row = parse_row(part.text[found.end() :], int(found[1]), part.line)
        if evaluated and "perf/step_time" in row.numbers:
            row.numbers[f"perf/{EVALUATION}_time"] = PrintedNumber(0.0, None)
            evaluated = False
        yield row


def read_console(path: Path) -> Imported:
    """The steps of slime's console under wandb's names; the lines of a rollout belong to the step that trains it."""
    return imported_rows(_rows(printouts(path)), path, FORMAT, NAMES)


def _is_step(part: Printout) -> bool:
    return _STEP in part.text and _LINE.search(part.text) is not None


SLIME = Trainer(
    name="slime",
    engines=_ENGINES,
    keys={
        "model": ("hf_checkpoint",),
        "prompts": ("rollout_batch_size",),
        "num_generations": ("n_samples_per_prompt",),
        "max_response_length": ("rollout_max_response_len",),
        "temperature": ("rollout_temperature",),
        "top_p": ("rollout_top_p",),
    },
    trees=tuple(tree for series in ("0.2", "0.3") for tree in (_tree(series), _async_tree(series))),
    formats=(LogFormat(FORMAT, "slime's console, with lines perf 3: {'perf/step_time': ...}", read_console, _is_step),),
    rows=NAMES,
    quantities={
        "reward": ("rollout/raw_reward", "rollout/rewards"),
        "mean_response_length": ("rollout/response_len/mean", "rollout/response_lengths"),
        "max_response_length": ("rollout/response_len/max",),
        "truncated_share": ("rollout/truncated_ratio", "rollout/truncated"),
    },
)
