"""Why do an arm's timers add up to more than its step? Which lie inside which, and what that counts twice."""

from __future__ import annotations

import pandas as pd

from analysis.report.cells import fixed
from analysis.runs import rows_of
from common.verdicts import count_of

MOST_TIMERS = 5


def nesting_text(phases: pd.DataFrame, root: str, digits: int) -> str:
    """A sentence for each timer of all arms that lies inside another, with its mean seconds in each arm.

    `phases`: the rows of one factor combination, as of `phase_table`. Timers inside others that only some arms log are
    in no sum (`sums_table`); they are named at the end.
    """
    inside = phases[phases["path"].str.startswith(root + "/") & (phases["parent"] != root)]
    labels = dict(zip(phases["path"], phases["label"], strict=True))
    arms = phases["arm"].nunique()
    shared: list[tuple[str, pd.DataFrame]] = []
    partial: list[tuple[str, pd.DataFrame]] = []
    for path in inside["path"].unique():
        rows = inside[inside["path"] == path]
        (shared if len(rows) == arms else partial).append((str(labels[path]), rows))
    if not shared and not partial:
        return "No timer lies inside another."
    told = []
    for label, rows in shared[:MOST_TIMERS]:
        for parent, mine in rows.groupby("parent", sort=False):
            each = [f"{fixed(r.mean_s, digits)} s ({r.arm})" for r in rows_of(mine)]
            told.append(f"{label} runs inside {labels[parent]}: adding up both counts {_listed(each)} twice.")
    if len(shared) > MOST_TIMERS:
        told.append(f"Inside others, too: {count_of(len(shared) - MOST_TIMERS, 'more timer')}.")
    for label, rows in partial[:MOST_TIMERS]:
        who, parent = _listed([str(arm) for arm in rows["arm"]]), labels[rows["parent"].iloc[0]]
        told.append(f"{label} runs inside {parent}, too, but only {who} logs it: it is in no sum here.")
    return " ".join(told)


def _listed(words: list[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
