"""Checks the runs themselves: a machine that others used while they were timed, and a reward that is not logged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.runs import Run
from analysis.wide import PHASE, REWARD
from common.findings import Finding
from common.verdicts import Verdict, count_of
from trainers.quantities import logged_as, scalars_of, single_rewards

OTHER_CPU = "other_cpu_s"
# wandb's own process and the system's daemons take a percent or two; from here on others were at work.
BUSY_SHARE = 0.10


def busy_shares(runs: Sequence[Run], wide: pd.DataFrame) -> dict[str, float]:
    """Runs beside which other processes worked: the share of their CPUs' time in the counted steps."""
    if OTHER_CPU not in wide:
        return {}
    by_run = wide[wide["counted"].astype(bool)].groupby("run_id")
    other, step = by_run[OTHER_CPU].sum().to_dict(), by_run[PHASE + "step"].sum().to_dict()
    busy = {}
    for run in runs:
        if run.run_id in other and (cpus := _cpus_watched(run)) > 0:
            other_s, step_s = other[run.run_id], step[run.run_id]
            share = other_s / (step_s * cpus) if step_s > 0 else 0.0
            if share > BUSY_SHARE:
                busy[run.run_id] = share
    return busy


def busy_machine_verdicts(runs: Sequence[Run], wide: pd.DataFrame) -> Iterator[Verdict]:
    """A warning that names every run of `busy_shares`."""
    busy = busy_shares(runs, wide)
    if not busy:
        return
    shares = ", ".join(f"{run_id}: {100 * share:.0f} %" for run_id, share in busy.items())
    text = (
        f"other processes used the training's processors ({shares} of their time in the counted steps): the timings "
        "are not the engines' own. Train again on a quiet machine before believing any ratio"
    )
    yield Verdict("warning", "busy-machine", text)


def busy_terms(runs: Sequence[Run], wide: pd.DataFrame) -> list[Finding]:
    """The same for the arms' verdicts: a ratio of these runs is of a machine that others used."""
    busy = busy_shares(runs, wide)
    arms = tuple(dict.fromkeys(run.arm for run in runs if run.run_id in busy))
    if not arms:
        return []
    what = f"Other processes used up to {100 * max(busy.values()):.0f} % of the processors' time in the counted steps"
    why, scope, settle = "the timings are not the engines' own", "on a busy machine", "runs on a quiet machine"
    return [Finding("unequal", "busy-machine", arms, what, why, "the job", settle, scope, settle)]


def _cpus_watched(run: Run) -> int:
    """The CPUs on which others' seconds are counted: of several processes each one's own, on all nodes."""
    cpus, own, processes = (run.hardware.get(name) for name in ("cpus", "affinity", "processes"))
    if isinstance(own, list) and isinstance(processes, int):
        return len(own) * processes
    return cpus if isinstance(cpus, int) else 0


def shared_machine_verdicts(runs: Sequence[Run]) -> Iterator[Verdict]:
    """Runs that trained at the same time on the same processors: each was slowed by the others.

    Two runs shared a machine where their last attempts overlap in time, on one host, and their processor
    affinities meet (or are not known).
    """
    crowded: dict[str, list[str]] = {}
    ordered = sorted((r.time_span, n) for n, r in enumerate(runs) if r.time_span is not None and r.hardware)
    for place, (span, n) in enumerate(ordered):
        run, host = runs[n], str(runs[n].hardware.get("host"))
        for later, m in ordered[place + 1 :]:
            if later[0] >= span[1]:
                break
            if str(runs[m].hardware.get("host")) == host and _processors_meet(run, runs[m]):
                crowded.setdefault(host, []).extend((run.run_id, runs[m].run_id))
    for host, ids in crowded.items():
        unique = list(dict.fromkeys(ids))
        names = ", ".join(unique[:6]) + (f" and {len(unique) - 6} more" if len(unique) > 6 else "")
        text = (
            f"{len(unique)} runs trained at the same time on the same processors of {host} ({names}): they slowed "
            "one another, and not equally. Train one run at a time before believing any ratio"
        )
        yield Verdict("warning", "shared-machine", text)


def _processors_meet(a: Run, b: Run) -> bool:
    sets: list[Any] = [r.hardware.get("affinity") for r in (a, b)]
    if not all(isinstance(s, list) and s for s in sets):
        return True
    return bool(set(sets[0]) & set(sets[1]))


def failed_reward_verdicts(wide: pd.DataFrame) -> Iterator[Verdict]:
    """Runs in which a user's reward function failed on completions, which had no value then."""
    for reward, columns in single_rewards(map(str, wide.columns), "failed").items():
        failed = wide[columns].apply(pd.to_numeric, errors="coerce").bfill(axis=1).iloc[:, 0]
        for run_id, rows in wide[failed > 0].groupby("run_id", sort=False):
            text = (
                f"run {run_id}: reward {reward} failed on {count_of(int(failed[rows.index].sum()), 'completion')} in "
                f"{count_of(len(rows), 'step')} (first: step {int(rows['step'].min())}); these had no value of it. "
                "attempts/*/reward_failures.jsonl has each with its reason"
            )
            yield Verdict("warning", "reward-failed", text)


def reward_verdicts(wide: pd.DataFrame, runs: Sequence[Run]) -> Iterator[Verdict]:
    """Runs that log no reward, and those whose reward is no finite number at some steps."""
    if not len(wide):
        return
    yield from failed_reward_verdicts(wide)
    if REWARD not in wide:
        yield Verdict("warning", "no-reward", f"no run logs {' or '.join(scalars_of(REWARD))}: no reward curve")
        return
    silent = {run.run_id for run in runs if logged_as(REWARD, run.steps["name"].unique()) is None}
    for key, rows in wide.groupby("run_id", sort=False):
        run_id, bad = str(key), rows[~np.isfinite(rows[REWARD].astype(float))]
        if run_id in silent:
            text = f"run {run_id} logs no reward: it has no reward curve"
            yield Verdict("note", "run-without-reward", text)
        elif len(bad):
            text = (
                f"run {run_id}: the reward is no number at {count_of(len(bad), 'step')} (first: step "
                f"{int(bad['step'].min())}); not drawn there"
            )
            yield Verdict("warning", "bad-reward", text)
