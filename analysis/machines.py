"""Finds what disturbed runs: an arm on a node of its own, other work, runs at the same time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import pandas as pd

from analysis.planned import PlanRead
from analysis.runs import Run
from analysis.wide import PHASE
from common.contracts import AttemptFile, read_file
from common.errors import UserError
from common.findings import Finding, Level
from common.messages import join_first
from common.verdicts import Verdict

_SOURCE = "attempts/*/attempt.json"
_SHOWN = 4
OTHER_CPU = "other_cpu_s"
# wandb's own process and the system's daemons take a percent or two; a larger share is other work.
BUSY_SHARE = 0.10


def disturbances(runs: Sequence[Run], wide: pd.DataFrame, plan: PlanRead) -> list[Finding]:
    """All findings: `unequal` where they may explain a difference of two arms, otherwise `odd`."""
    attempts = {run.run_id: _attempts(run) for run in runs if not run.imported}
    apart = _apart(runs, attempts, plan) if attempts else ()
    return [*_busy(runs, wide), *_shared(runs), *apart]


def disturbance_verdicts(found: Iterable[Finding]) -> Iterator[Verdict]:
    """The same as warnings about the data."""
    for one in found:
        yield Verdict("warning", one.code, f"{one.what}: {one.why}. To resolve it: {one.change}")


def _finding(level: Level, code: str, arms: Iterable[str], what: str, why: str, settle: str, scope: str) -> Finding:
    return Finding(level, code, tuple(dict.fromkeys(arms)), what, why, _SOURCE, settle, scope, settle)


def _attempts(run: Run) -> list[AttemptFile]:
    """The attempts of a run that this project trained."""
    found = []
    for file in run.attempt_files("attempt.json"):
        with suppress(UserError):
            attempt = read_file(AttemptFile, file, "the job on the node")
            counts = not run.attempts or attempt["attempt"] in run.attempts
            if counts and attempt.get("fingerprint") == run.spec.get("fingerprint"):
                found.append(attempt)
    return found


def _nodes_of(runs: Sequence[Run], attempts: dict[str, list[AttemptFile]], arm: str) -> set[str]:
    """The nodes of an arm's runs; attempts of older releases do not name them."""
    mine = [attempt for run in runs if run.arm == arm for attempt in attempts.get(run.run_id, ())]
    return {node for attempt in mine for node in attempt.get("nodes", ())}


def _apart(runs: Sequence[Run], attempts: dict[str, list[AttemptFile]], plan: PlanRead) -> Iterator[Finding]:
    """Arms without a common node, if one of them has a single node: its speed is in all of the arm's runs."""
    base = _nodes_of(runs, attempts, plan.baseline)
    for arm in plan.rivals:
        mine = _nodes_of(runs, attempts, arm)
        if base and mine and not base & mine and min(len(base), len(mine)) == 1:
            places = [
                f"{name} on {join_first(sorted(of), _SHOWN)}" for name, of in ((plan.baseline, base), (arm, mine))
            ]
            what = f"{'; '.join(places)}: the arms have no node in common"
            why, settle = (
                "the ratio includes how these nodes differ",
                "runs on the same nodes (nodelist or reservation in the profile)",
            )
            yield _finding("unequal", "different-nodes", (arm,), what, why, settle, "on different nodes")


def _busy(runs: Sequence[Run], wide: pd.DataFrame) -> Iterator[Finding]:
    """Runs in whose counted steps other processes took a share of the CPU time."""
    if OTHER_CPU not in wide:
        return
    columns = ["run_id", OTHER_CPU, PHASE + "step"]
    by_run = wide.loc[wide["counted"].astype(bool), columns].groupby("run_id")
    other_s, step_s = (by_run[name].sum().to_dict() for name in (OTHER_CPU, PHASE + "step"))
    busy: dict[str, str] = {}
    for run in runs:
        cpu_s = step_s.get(run.run_id, 0.0) * _watched_cpus(run)
        if cpu_s > 0 and (share := other_s[run.run_id] / cpu_s) > BUSY_SHARE:
            busy[run.run_id] = f"{run.run_id}: {100 * share:.0f} %"
    if busy:
        what = f"Other processes used the processors in the counted steps ({join_first(list(busy.values()), _SHOWN)})"
        why, settle = "the timings are not the engines' own", "runs on a quiet machine"
        arms = (run.arm for run in runs if run.run_id in busy)
        yield _finding("unequal", "busy-machine", arms, what, why, settle, "on a busy machine")


def _watched_cpus(run: Run) -> int:
    """The CPUs whose other work is measured: those of each process, on all nodes, where there are several."""
    cpus, own, processes = (run.hardware.get(name) for name in ("cpus", "affinity", "processes"))
    if isinstance(own, list) and isinstance(processes, int):
        return len(own) * processes
    return cpus if isinstance(cpus, int) else 0


def _shared(runs: Sequence[Run]) -> Iterator[Finding]:
    """Runs whose last attempts overlap in time on one host, on processors that overlap or are unknown."""
    timed = [(run.time_span, str(run.hardware.get("host")), run) for run in runs if run.time_span and run.hardware]
    timed.sort(key=lambda one: one[0])
    crowded: dict[str, dict[str, Run]] = defaultdict(dict)
    for ((_, end), host, run), ((start, _), other_host, other) in itertools.combinations(timed, 2):
        if start < end and host == other_host and _share_processors(run, other):
            crowded[host] |= {one.run_id: one for one in (run, other)}
    for host, crowd in crowded.items():
        what = f"{len(crowd)} runs trained at the same time on {host} ({join_first(list(crowd), _SHOWN)})"
        why, settle = "they slowed one another, and not equally", "runs one at a time"
        arms = (run.arm for run in crowd.values())
        yield _finding("unequal", "shared-machine", arms, what, why, settle, "on a shared machine")


def _share_processors(a: Run, b: Run) -> bool:
    affinities = [run.hardware.get("affinity") for run in (a, b)]
    known = [set(cpus) for cpus in affinities if isinstance(cpus, list) and cpus]
    return len(known) < 2 or bool(known[0] & known[1])
