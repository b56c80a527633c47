"""Checks the runs themselves: a machine that others used at the same time, and a reward that is not logged."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analysis.runs import Run
from analysis.wide import PHASE, REWARD
from common.findings import Finding
from common.messages import join_first
from common.verdicts import Verdict, count_of
from trainers.registry import logged_as, scalars_of, single_rewards

OTHER_CPU = "other_cpu_s"
# wandb's own process and the system's daemons take a percent or two; a larger share is other work.
BUSY_SHARE = 0.10


def busy_shares(runs: Sequence[Run], wide: pd.DataFrame) -> dict[str, float]:
    """The runs on busy machines: other processes' share of the CPU time in the counted steps."""
    if OTHER_CPU not in wide:
        return {}
    by_run = wide.loc[wide["counted"].astype(bool), ["run_id", OTHER_CPU, PHASE + "step"]].groupby("run_id")
    other, step = by_run[OTHER_CPU].sum().to_dict(), by_run[PHASE + "step"].sum().to_dict()
    shares = {}
    for run in runs:
        cpu_s = step.get(run.run_id, 0.0) * _watched_cpus(run)
        if cpu_s > 0 and (share := other[run.run_id] / cpu_s) > BUSY_SHARE:
            shares[run.run_id] = share
    return shares


def busy_machine_verdicts(runs: Sequence[Run], wide: pd.DataFrame) -> Iterator[Verdict]:
    """A warning that names every run of `busy_shares`."""
    if busy := busy_shares(runs, wide):
        shares = ", ".join(f"{run_id}: {100 * share:.0f} %" for run_id, share in busy.items())
        text = (
            f"other processes used the training's processors ({shares} of their time in the counted steps), so the "
            "timings are not the engines' own. Train again on a quiet machine before you rely on a ratio"
        )
        yield Verdict("warning", "busy-machine", text)


def busy_terms(runs: Sequence[Run], wide: pd.DataFrame) -> list[Finding]:
    """The same as a finding, for the verdicts of these runs' arms."""
    busy = busy_shares(runs, wide)
    arms = tuple(dict.fromkeys(run.arm for run in runs if run.run_id in busy))
    if not arms:
        return []
    what = f"Other processes used up to {100 * max(busy.values()):.0f} % of the processors' time in the counted steps"
    why, scope, settle = "the timings are not the engines' own", "on a busy machine", "runs on a quiet machine"
    return [Finding("unequal", "busy-machine", arms, what, why, "the job", settle, scope, settle)]


def _watched_cpus(run: Run) -> int:
    """The CPUs whose other work is measured: those of each process, on all nodes, where there are several."""
    cpus, own, processes = (run.hardware.get(name) for name in ("cpus", "affinity", "processes"))
    if isinstance(own, list) and isinstance(processes, int):
        return len(own) * processes
    return cpus if isinstance(cpus, int) else 0


def shared_machine_verdicts(runs: Sequence[Run]) -> Iterator[Verdict]:
    """Runs that trained at the same time on the same processors and slowed one another.

    Two runs share a machine if their last attempts overlap in time on one host, and their processor affinities overlap
    or are unknown.
    """
    timed = [(run.time_span, str(run.hardware.get("host")), run) for run in runs if run.time_span and run.hardware]
    timed.sort(key=lambda one: one[0])
    crowded: dict[str, list[str]] = defaultdict(list)
    for ((_, end), host, run), ((start, _), other_host, other) in itertools.combinations(timed, 2):
        if start < end and host == other_host and _share_processors(run, other):
            crowded[host] += [run.run_id, other.run_id]
    for host, ids in crowded.items():
        unique = list(dict.fromkeys(ids))
        text = (
            f"{len(unique)} runs trained at the same time on the same processors of {host} ({join_first(unique, 6)}): "
            "they slowed one another, and not equally. Train one run at a time before you rely on a ratio"
        )
        yield Verdict("warning", "shared-machine", text)


def _share_processors(a: Run, b: Run) -> bool:
    affinities = [run.hardware.get("affinity") for run in (a, b)]
    known = [set(cpus) for cpus in affinities if isinstance(cpus, list) and cpus]
    return len(known) < 2 or bool(known[0] & known[1])


def failed_reward_verdicts(wide: pd.DataFrame) -> Iterator[Verdict]:
    """Runs in which a user's reward function failed on completions, which then have no value."""
    for reward, columns in single_rewards(map(str, wide.columns), "failed").items():
        failed = wide[columns].apply(pd.to_numeric, errors="coerce").bfill(axis=1).iloc[:, 0]
        for run_id, steps in wide.loc[failed > 0, ["run_id", "step"]].groupby("run_id", sort=False)["step"]:
            text = (
                f"run {run_id}: reward {reward} failed on {count_of(int(failed[steps.index].sum()), 'completion')} in "
                f"{count_of(len(steps), 'step')} (first: step {int(steps.min())}), which have no value of it. "
                "attempts/*/reward_failures.jsonl has each with its reason"
            )
            yield Verdict("warning", "reward-failed", text)


def reward_verdicts(wide: pd.DataFrame, runs: Sequence[Run]) -> Iterator[Verdict]:
    """Runs that log no reward, and those whose reward is not a finite number at some steps."""
    if not len(wide):
        return
    yield from failed_reward_verdicts(wide)
    if REWARD not in wide:
        yield Verdict("warning", "no-reward", f"no run logs {' or '.join(scalars_of(REWARD))}: no reward curve")
        return
    of_run, bad = {run.run_id: run for run in runs}, ~np.isfinite(wide[REWARD].astype(float))
    size = wide.groupby("run_id").size()
    for key, steps in wide.loc[bad, ["run_id", "step"]].groupby("run_id", sort=False)["step"]:
        run_id = str(key)
        if len(steps) == size[run_id] and logged_as(REWARD, of_run[run_id].steps["name"].unique()) is None:
            yield Verdict("note", "run-without-reward", f"run {run_id} logs no reward: it has no reward curve")
        else:
            first = int(steps.min())
            text = f"run {run_id}: the reward is no number at {count_of(len(steps), 'step')} (first: step {first})"
            yield Verdict("warning", "bad-reward", f"{text}; the curve has a gap there")
