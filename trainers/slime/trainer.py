"""slime: what its runs log. Imported, not driven.

Read in releases 0.2.0 to 0.3.1: slime/utils/{timer,train_metric_utils}.py, slime/backends/megatron_utils/actor.py,
slime/ray/rollout.py, train.py and train_async.py; in 0.2 slime/backends/fsdp_utils/actor.py too. slime counts
rollouts from 0: rollout 0 is step 1 here.
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
_WAIT, _TRAIN, _UPDATE = "step/train_wait", "step/train", "step/train_wait/update_weights"
OVERLAPS = "slime/overlaps"
# Trainer and rollout manager print `perf 3: {...}`; `rollout 3: {...}` has rewards and lengths.
_LINE = re.compile(r"(?<![\w/])(?:perf|rollout) (\d{1,18}): (?=\{')")
_STEP = "'perf/step_time': "
_EVALUATED = re.compile(r"(?<![\w/])eval \d{1,18}: (?=\{')")


def _overlap_mark(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """A rollout longer than the trainer's wait for it ran during the previous training (train_async.py)."""
    rollout, wait = (numbers.get(TIMERS + name) for name in ("rollout", "train_wait"))
    return {OVERLAPS: 1.0} if rollout is not None and wait is not None and rollout > wait else {}


NAMES = StepNames(
    mark="rollout/step",
    counter="rollout/step",
    total="step",
    timers=(("perf/", "_time"),),
    first=0,
    evaluated="eval/step",
    derived=_overlap_mark,
)
# All phases but those of train_actor's block `train` run while the clock `train_wait` runs.
_PHASES = (
    Phase("step", "Step", "The trainer's wait and training, one after the other; rank 0.", "other", ("step",)),
    keyed("train_wait", "Wait", "From the previous training to this one: rollout, weights, and untimed evaluations."),
    keyed("rollout", "Rollout", "The rollout manager's clock: generation and rewards.", "generation", _WAIT),
    keyed("update_weights", "Update weights", "Sends the engines the last step's weights.", "weight sync", _WAIT),
    keyed("delta_encode", "Encode deltas", "Weights that changed (0.3).", "weight sync", _UPDATE),
    keyed("delta_finalize", "Publish deltas", "Publishes the changed weights (0.3).", "weight sync", _UPDATE),
    keyed("wake_up", "Wake up", "The trainer takes its memory back.", within=_WAIT),
    keyed("sleep", "Sleep", "The trainer frees its memory for the engines, after the last step.", within=_WAIT),
    keyed("data_preprocess", "Preprocess data", "Fetches the samples and makes micro-batches.", within=_WAIT),
    keyed(
        "save_model",
        "Save model",
        "The last step's checkpoint, with wake-up and sleep.",
        "other",
        _WAIT,
        occasional=True,
    ),
    keyed(
        EVALUATION, "Evaluation", "No clock covers it: its time is in the wait's own.", "other", _WAIT, occasional=True
    ),
    keyed("train", "Train", "Log-probabilities, advantages and the update."),
    keyed("ref_log_probs", "Reference log-probs", "Under the frozen reference model.", "log-probs", _TRAIN),
    keyed("teacher_log_probs", "Teacher log-probs", "Under a teacher (distillation).", "log-probs", _TRAIN),
    keyed("log_probs", "Old log-probs", "Under the policy that generated the responses.", "log-probs", _TRAIN),
    keyed("actor_train", "Update actor", "Forward, backward and the optimizer.", "loss+backward", _TRAIN),
)
# Statistics over samples that run at the same time, and a copy of the weights that counts in the next step's wait.
_BESIDE = (("longest_*", "s", "*"), ("ref_model_update", "s", "next_step_s/*"))


def _trees(series: str) -> tuple[TimerTree, TimerTree]:
    source = f"slime {series} slime/backends/megatron_utils/actor.py, slime/ray/rollout.py, train.py"
    return (
        TimerTree("slime", series, _ENGINES, _PHASES, source, beside=_BESIDE),
        overlapping_tree(
            "slime",
            series,
            _ENGINES,
            f"slime {series} train_async.py",
            ("step",),
            "The trainer's wait and training, one after the other; rank 0.",
            mode="async",
            overlap="the next rollout is generated while this step trains (train_async.py)",
            marks=(OVERLAPS,),
        ),
    )


def _rows(parts: Iterable[Printout]) -> Iterator[PrintedRow]:
    """The rows of a console. An evaluation marks the trainer's next row."""
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
    """The steps of slime's console under wandb's names; a rollout's lines belong to the step that trains it."""
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
    trees=tuple(tree for series in ("0.2", "0.3") for tree in _trees(series)),
    formats=(LogFormat(FORMAT, "slime's console, with lines perf 3: {'perf/step_time': ...}", read_console, _is_step),),
    rows=NAMES,
    quantities={
        "reward": ("rollout/raw_reward", "rollout/rewards"),
        "mean_response_length": ("rollout/response_len/mean", "rollout/response_lengths"),
        "max_response_length": ("rollout/response_len/max",),
        "truncated_share": ("rollout/truncated_ratio", "rollout/truncated"),
    },
)
