"""Reads OpenRLHF's console, with lines `Global step 3: {'timing/step_total': ...}`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from trainers.logs.dictionary_lines import console_rows, imported_rows
from trainers.logs.log_files import printouts
from trainers.logs.record import TIMERS
from trainers.logs.step_names import StepNames
from trainers.protocol import LogFormat

_FORMAT = "openrlhf-console"
_PARTS = tuple(TIMERS + name for name in ("generation", "make_experience", "ppo_train", "broadcast"))
_TOTAL = TIMERS + "step_total"
_LINE = re.compile(r"\bGlobal step (\d{1,18}): (?=\{')")
_WORD = "Global step "


def overlap_mark(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """The synchronous loop's total is the exact sum of its parts; the asynchronous loop's is a wall clock."""
    if _TOTAL not in numbers or not all(part in numbers for part in _PARTS):
        return {}
    summed = sum(value for name, value in numbers.items() if name.startswith(TIMERS) and name != _TOTAL)
    return {} if math.isclose(numbers[_TOTAL], summed, rel_tol=1e-9) else {"openrlhf/overlaps": 1.0}


def console(names: StepNames) -> LogFormat:
    """The steps under wandb's names; lines without `timing/step_total` are not steps."""
    return LogFormat(
        _FORMAT,
        "OpenRLHF's console, with lines Global step 3: {'timing/step_total': ...}",
        lambda path: imported_rows(console_rows(printouts(path), _WORD, _LINE), path, _FORMAT, names, "train/"),
        is_step=lambda part: _WORD in part.text and _LINE.search(part.text) is not None,
    )
