"""Reads NeMo-RL's console: its printed configuration, and a block for each step, from a line `==== Step 3/100 ====` to
the timers after `Total step time:`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.messages import join_first
from common.verdicts import Verdict
from trainers.logs.log_files import PrintedNumber, half_digit, parse_number, printouts
from trainers.logs.printed_config import PrintedConfigs
from trainers.logs.record import TIMERS, Imported, StepNames, StepRecord
from trainers.logs.restarts import steps_in_sequence
from trainers.protocol import LogFormat

_FORMAT = "nemo-rl-console"
_TOTAL = TIMERS + "total_step_time"
_HEAD = re.compile(r"={5,} (Step|Epoch) (\d{1,12})/(\d{1,12}) ={5,}")
# The loop of one controller (single_controller.py) has no such head: its block ends with this line.
_TAIL = re.compile(r"\btrain step (\d{1,12})/\d{1,12}  trainer_v=")
_ENTRY = re.compile(r"• ([\w /.-]+?): (-?[\d.]+|nan|inf)(?:s|\b)")
_STEP = "• Total step time: "
# Of the buffer, before a step's batch is drawn: each of its trajectories is the responses of one prompt.
_EVICTED, _EVICTS = "train/evicted_stale_prompt_groups", re.compile(r"\bEvicting (\d{1,9}) stale trajectories\b")
# A block's entries beside its timers -> wandb's names.
_ENTRIES = {
    "Loss": "train/loss",
    "Generation KL Error": "train/gen_kl_error",
    "Avg Reward": "train/reward",
    "Avg Total Reward": "train/reward",
    "Avg Filtered Reward": "train/filtered_reward",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Buffer Size": "train/buffer_size",
    "Avg Trajectory Age": "train/avg_trajectory_age",
    "Total validation time": TIMERS + "total_validation_time",
    "Total step time": _TOTAL,
}


@dataclass
class _Blocks:
    """Counts a console's steps over its epochs; in each epoch NeMo-RL counts from 1."""

    epoch: int = 1
    before: int = 0
    """Steps of earlier epochs."""
    step: int = 0
    numbers: dict[str, PrintedNumber] = field(default_factory=dict)
    evicted: int = 0
    line: int = 0
    first_head: int = 0
    """The line of the first step's head; 0 before it."""
    placed: int = 0
    """Blocks before any head, as in a pasted excerpt."""
    headed: bool = False

    def ended(self) -> int:
        """The step of the block that ends; without a head it follows the last one."""
        if not self.headed and self.first_head:
            self.step += 1
        elif not self.headed:
            self.placed += 1
        self.headed = False
        return self.step if self.first_head else self.placed

    def head(self, kind: str, number: int, of: int, line: int) -> None:
        """A step's or an epoch's first line."""
        self.numbers = {}
        if kind == "Epoch":
            if number != self.epoch:
                self.before = self.step if number > self.epoch else 0
                self.epoch = number
            return
        if self.epoch > 1 and not self.before:
            # The log begins in a later epoch; earlier epochs had the same number of steps.
            self.before = (self.epoch - 1) * of
        self.step, self.headed, self.first_head = self.before + number, True, self.first_head or line

    def precedes(self, kind: str, number: int) -> bool:
        """Whether the block that ends is of the step before the one whose head this is."""
        follows = kind == "Step" and self.before + number == self.step + 1
        return bool(self.headed and self.numbers and follows)

    def tail(self, number: int) -> None:
        """A block's last line."""
        self.step, self.headed, self.first_head = number, True, self.first_head or self.line - 1


def _read(path: Path, blocks: _Blocks, printed: PrintedConfigs) -> Iterator[StepRecord]:
    for part in printouts(path):
        printed.feed(part)
        text = part.text
        if "=====" in text and (head := _HEAD.search(text)) is not None:
            without_total = _TOTAL not in blocks.numbers and blocks.precedes(head[1], int(head[2]))
            if without_total:
                blocks.line = part.line - 1
            if without_total or _TOTAL in blocks.numbers:
                yield _record(blocks, path)
            blocks.head(head[1], int(head[2]), int(head[3]), part.line)
        elif "trainer_v=" in text and (tail := _TAIL.search(text)) is not None:
            if _TOTAL in blocks.numbers:
                blocks.tail(int(tail[1]))
                yield _record(blocks, path)
        elif "Evicting" in text and (evicts := _EVICTS.search(text)) is not None:
            blocks.evicted += int(evicts[1])
        elif "•" in text and (entry := _ENTRY.search(text)) is not None:
            number = parse_number(entry[2])
            # A number at the end of a file without a line break may be truncated.
            if number is None or not part.ended:
                continue
            name = _ENTRIES.get(entry[1])
            twice = name == _TOTAL and blocks.numbers.get(name) == number and part.line == blocks.line + 1
            if name is not None and _TOTAL in blocks.numbers and not twice:
                yield _record(blocks, path)
            if _STEP in text:
                blocks.line = part.line
            if name is None and _TOTAL in blocks.numbers and f"{entry[2]}s (" in text:
                name = TIMERS + entry[1]
            if name is not None:
                blocks.numbers[name] = number
    if _TOTAL in blocks.numbers:
        yield _record(blocks, path)


def _record(blocks: _Blocks, path: Path) -> StepRecord:
    """The step of a complete block; its numbers have a fixed number of decimals."""
    numbers, blocks.numbers = blocks.numbers, {}
    rounding = {name: half_digit(one.decimals) for name, one in numbers.items() if one.decimals is not None}
    scalars = {name: one.value for name, one in numbers.items()}
    if blocks.evicted:
        scalars[_EVICTED], blocks.evicted = float(blocks.evicted), 0
    return StepRecord(blocks.ended(), {}, scalars, {}, None, path, blocks.line, rounding)


def _read_console(path: Path) -> Imported:
    """The steps of NeMo-RL's console under wandb's names, with half a unit of the last printed digit."""
    # What follows its line `Final config:`.
    blocks, printed = _Blocks(), PrintedConfigs("NeMo-RL", ("grpo", "policy"))
    # All are read before the first is asked: the head's line is known then.
    records = [one for one in list(_read(path, blocks, printed)) if one.line > blocks.first_head]
    read = steps_in_sequence(records, path)
    if read.records and not blocks.first_head:
        text = f"{path} has no line `==== Step 3/100 ====`: its blocks are read as steps 1 to {blocks.placed}"
        read.verdicts.append(Verdict("note", "step-by-place", text))
    if without := [step for step, one in read.records.items() if _TOTAL not in one.scalars]:
        text = f"{path}: step {join_first(without)} has no line `Total step time`, and does not count"
        read.verdicts.append(Verdict("warning", "timings-missing", text))
    read.verdicts += printed.verdicts(path)
    config, later = printed.by_step(records)
    return Imported(read, _FORMAT, config, later=later)


def console(names: StepNames) -> LogFormat:
    """Its lines have other names than wandb's rows (`names`)."""
    return LogFormat(
        _FORMAT,
        "NeMo-RL's console, with blocks of lines `• Total step time: 12.34s`",
        _read_console,
        is_step=lambda part: _STEP in part.text and _ENTRY.search(part.text) is not None,
    )
