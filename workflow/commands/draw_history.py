"""Draws the history of finished experiments, and says whether an arm has become slower."""

from __future__ import annotations

import argparse
import json
import sys

from analysis.speed_history import LEAST, SPEED, read_experiments, sentence, series_of
from common.errors import UserError
from common.files import write_text_at
from common.messages import unknown_name
from common.shown import shown
from common.verdicts import HistoryFile, SeriesInHistory

SLOWER = 3
"""The exit code where `--fail-if-slower` finds a slower arm."""
OTHER_PLACE = "give another folder with --to"


def history(args: argparse.Namespace) -> None:
    """Run `rolloutbench history`: print what each series shows, then write history.json and the page."""
    limit: float | None = args.fail_if_slower
    if limit and not args.arm:
        raise UserError("--fail-if-slower needs the arm that it judges: add --arm NAME")
    experiments, notes = read_experiments(args.folders)
    series = series_of(experiments)
    arms = list(dict.fromkeys(one["arm"] for one in series))
    if args.arm and args.arm not in arms:
        raise UserError(unknown_name("arm", args.arm, arms))
    drawn = [one for one in series if args.arm in (None, one["arm"])]
    if len(experiments) > 1 and all(len(one["points"]) == 1 for one in drawn):
        notes.append("no arm is in two experiments with the same workload and hardware, so nothing is compared")
    for one in drawn:
        print(shown(sentence(one)))
    for note in notes:
        print(f"note: {shown(note)}", file=sys.stderr)
    sys.stdout.flush()
    found: HistoryFile = {"format": 1, "series": drawn, "notes": notes}
    text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
    write_text_at(args.to / "history.json", f"{text}\n", OTHER_PLACE)
    # Loading Altair takes a second: the answer is printed first.
    from analysis.history_page import history_page

    write_text_at(args.to / "history.html", history_page(drawn, notes), OTHER_PLACE)
    print(f"history: {args.to / 'history.html'}", flush=True)
    if limit and any([_is_slower(one, limit) for one in drawn if one["quantity"] == SPEED]):
        sys.exit(SLOWER)


def _is_slower(one: SeriesInHistory, limit: float) -> bool:
    """Whether the current level is slower than the fastest one before by that share; prints the judgement."""
    slower = (one["slowdown"] or 1.0) - 1
    if len(one["points"]) < 2 * LEAST:
        text = f"not judged, {2 * LEAST} experiments are needed"
    else:
        text = f"{100 * slower:.1f}% slower than at its fastest level: {'failed' if slower >= limit else 'passed'}"
    print(f"{one['arm']} on {one['hardware'] or 'unnamed hardware'}: {text}")
    return slower >= limit
