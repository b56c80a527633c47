"""Draws the history of finished experiments, and says whether an arm has become slower."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence

from analysis.history.experiments import FinishedExperiment, Skipped, read_experiments
from analysis.history.series import LEAST_POINTS, SPEED, Series, history_file, sentence, series_of
from common.errors import UserError
from common.files import write_text_at
from common.messages import join_first, unknown_name
from common.shown import shown
from common.verdicts import count_of

SLOWER = 3
"""The exit code where `--fail-if-slower` finds a slower arm."""
MOST_LINES = 12
OTHER_PLACE = "give another folder with --to"


def history(args: argparse.Namespace) -> None:
    """Run `rolloutbench history`: print what each series shows, then write history.json and the page."""
    limit = _share(args)
    experiments, skipped = read_experiments(args.folders)
    series = series_of(experiments)
    arms = list(dict.fromkeys(one.arm for one in series))
    if args.arm and args.arm not in arms:
        raise UserError(unknown_name("arm", args.arm, arms))
    drawn = [one for one in series if args.arm in (None, one.arm)]
    notes = _notes(experiments, skipped, drawn)
    for line in _first_lines([sentence(one) for one in drawn]):
        print(shown(line))
    for note in notes:
        print(f"note: {shown(note)}", file=sys.stderr)
    sys.stdout.flush()
    text = json.dumps(history_file(drawn, notes), indent=1, ensure_ascii=False, allow_nan=False)
    write_text_at(args.to / "history.json", f"{text}\n", OTHER_PLACE)
    # Loading Altair takes a second: the answer is printed first.
    from analysis.history.history_page import history_page

    write_text_at(args.to / "history.html", history_page(drawn, notes), OTHER_PLACE)
    print(f"history: {args.to / 'history.html'}", flush=True)
    if limit is not None and _is_slower([one for one in drawn if one.quantity == SPEED], limit):
        sys.exit(SLOWER)


def _share(args: argparse.Namespace) -> float | None:
    """The limit of `--fail-if-slower` as a share."""
    if args.fail_if_slower is None:
        return None
    text = str(args.fail_if_slower)
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not 0 < share < math.inf:
        raise UserError(f"--fail-if-slower must be a percentage above 0, such as 5% (got {text})")
    if not args.arm:
        raise UserError("--fail-if-slower needs the arm that it judges: add --arm NAME")
    return share


def _is_slower(series: Sequence[Series], limit: float) -> bool:
    """Whether a series' current level is slower than its fastest level before by that share; prints each judgement."""
    found = False
    for one in series:
        place = f"{one.arm} on {one.hardware or 'unnamed hardware'}"
        slowdown = one.slowdown
        if len(one.points) < LEAST_POINTS:
            print(f"{place}: not judged, {count_of(len(one.points), 'experiment')} of the {LEAST_POINTS} that it needs")
        elif slowdown and slowdown.value >= math.log1p(limit):
            found = True
            print(f"{place}: {100 * math.expm1(slowdown.value):.1f}% slower than at its fastest level: failed")
        else:
            print(f"{place}: not slower by {100 * limit:g}% or more")
    return found


def _first_lines(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    more = len(lines) - MOST_LINES
    return [
        *lines[:MOST_LINES],
        *([f"{count_of(more, 'more series', 'more series')} on the page."] if more > 0 else []),
    ]


def _notes(
    experiments: Sequence[FinishedExperiment], skipped: Sequence[Skipped], series: Sequence[Series]
) -> list[str]:
    """What was skipped, and doubts about the rest."""
    notes = [f"{one.folder} is skipped: {one.why}" for one in skipped]
    if len(experiments) > 1 and all(len(one.points) == 1 for one in series):
        notes.append(
            "no arm is in two experiments with the same workload and hardware, so nothing is compared over time"
        )
    twice = Counter((one.name, one.time) for one in experiments)
    if same := [str(one.folder) for one in experiments if twice[one.name, one.time] > 1]:
        notes.append(f"{join_first(same, 3)} have one name and one start, and other numbers: all of them count")
    if untimed := [str(one.folder) for one in experiments if not one.has_time]:
        notes.append(
            f"no run recorded its start in {join_first(untimed, 3)}: the file time of report.json is used, which a "
            "copy changes"
        )
    return notes
