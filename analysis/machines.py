"""Checks the machines of the runs: different or slow nodes, other work on them, and runs at the same time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.planned import PlanRead
from analysis.runs import Run
from analysis.wide import PHASE
from common.contracts import AttemptFile, NodeSpeed, read_file
from common.errors import UserError
from common.findings import Equality, Finding, LedgerRow, Preflight
from common.messages import join_first
from common.verdicts import Verdict

ROW = "nodes"
# A node that is slower by less is not named: H100s of one site differ by a few percent.
LEAST_SLOWER = 0.05
# The peers' spread is the range of their values without the outermost tenths: one of them may be slow, too.
_SPREAD = (0.1, 0.9)
_SOURCE = "attempts/*/attempt.json"
_SHOWN = 4
OTHER_CPU = "other_cpu_s"
# wandb's own process and the system's daemons take a percent or two; a larger share is other work.
BUSY_SHARE = 0.10


@dataclass(frozen=True)
class RunNodes:
    """The nodes that one run trained on, and the speeds that its attempts measured there."""

    run: Run
    nodes: tuple[str, ...]
    speeds: tuple[NodeSpeed, ...]


@dataclass(frozen=True)
class SlowNode:
    """A node that is slower than its peers by more than their spread."""

    node: str
    figures: tuple[str, ...]
    runs: tuple[Run, ...]

    @property
    def text(self) -> str:
        return f"node {self.node} is slower than the others: {'; '.join(self.figures)}"


@dataclass(frozen=True)
class Nodes:
    """The nodes of all runs of an experiment."""

    runs: tuple[RunNodes, ...]
    slow: tuple[SlowNode, ...]

    def pairs(self, plan: PlanRead) -> Iterator[tuple[RunNodes, RunNodes]]:
        """The pairs of runs, baseline first: equal seeds and equal common factors."""
        arms, rivals = {*plan.rivals}, defaultdict(list)
        for one in self.runs:
            if one.run.arm in arms:
                rivals[one.run.seed].append(one)
        for first in self.runs:
            if first.run.arm == plan.baseline:
                for second in rivals[first.run.seed]:
                    if _same_factors(first.run, second.run):
                        yield first, second


def _same_factors(a: Run, b: Run) -> bool:
    return all(a.factors[path] == b.factors[path] for path in a.factors.keys() & b.factors.keys())


def nodes_of(runs: Sequence[Run]) -> Nodes:
    """The nodes of the runs that this project trained; attempts of older releases do not name them."""
    found = tuple(one for run in runs if (one := _run_nodes(run)).nodes)
    return Nodes(found, tuple(slow_nodes(found)))


def _run_nodes(run: Run) -> RunNodes:
    nodes: dict[str, None] = {}
    speeds = []
    for file in run.attempt_files("attempt.json"):
        with suppress(UserError):
            attempt = read_file(AttemptFile, file, "the job on the node")
            counts = not run.attempts or attempt["attempt"] in run.attempts
            if counts and attempt.get("fingerprint") == run.spec.get("fingerprint"):
                nodes |= dict.fromkeys(attempt.get("nodes", ()))
                speeds += attempt.get("speeds", [])
    return RunNodes(run, tuple(nodes), tuple(speeds))


def slow_nodes(runs: Sequence[RunNodes]) -> Iterator[SlowNode]:
    """The nodes that are slower than the others' median by more than the others' spread."""
    # stack and quantity -> node -> GPU (None: the whole node) -> the fastest repetition of each measurement, since what
    # else runs on a node slows some repetitions. Another stack has other libraries.
    measured: dict[tuple[str, str, str], dict[str, dict[int | None, list[float]]]] = defaultdict(dict)
    for stack, speed in ((str(one.run.spec.get("stack")), speed) for one in runs for speed in one.speeds):
        for figure in speed["figures"]:
            of_node = measured[stack, figure["what"], figure["unit"]].setdefault(speed["node"], {})
            of_node.setdefault(figure["gpu"], []).append(max(figure["values"]))
    found: dict[str, list[str]] = defaultdict(list)
    for (_, what, unit), by_node in measured.items():
        for node, values in by_node.items():
            others = [value for other in by_node if other != node for some in by_node[other].values() for value in some]
            # Equal work waits for the slowest GPU.
            gpu, slowest = min(((gpu, float(np.median(some))) for gpu, some in values.items()), key=lambda one: one[1])
            if others and _is_slower(slowest, others):
                at = "" if gpu is None else f" on GPU {gpu}"
                spread = f"{min(others):.3g} to {max(others):.3g}"
                found[node].append(f"{what}{at} {slowest:.3g} {unit} (others {spread})")
    for node, figures in found.items():
        yield SlowNode(node, tuple(figures), tuple(one.run for one in runs if node in one.nodes))


def _is_slower(value: float, others: Sequence[float]) -> bool:
    low, high = np.quantile(others, _SPREAD)
    middle = float(np.median(others))
    return middle - value > max(float(high - low), LEAST_SLOWER * middle)


def slow_node_verdicts(nodes: Nodes) -> Iterator[Verdict]:
    """A warning for each node that is slower than its peers."""
    for slow in nodes.slow:
        ids = join_first([run.run_id for run in slow.runs], _SHOWN)
        text = f"{slow.text}. Runs on it: {ids}. Exclude it (exclude in the profile) and train these runs again"
        yield Verdict("warning", "slow-node", text)


def node_terms(nodes: Nodes, plan: PlanRead) -> list[Finding]:
    """Findings on pairs on disjoint nodes, and on pairs of which one run had a slow node."""
    return [*_disjoint(nodes, plan), *_on_slow_nodes(nodes, plan)]


def _disjoint(nodes: Nodes, plan: PlanRead) -> Iterator[Finding]:
    for arm in plan.rivals:
        pairs = [(a, b) for a, b in nodes.pairs(plan) if b.run.arm == arm]
        apart = [
            f"{a.run.run_id} on {', '.join(a.nodes)}, {b.run.run_id} on {', '.join(b.nodes)}"
            for a, b in pairs
            if not {*a.nodes} & {*b.nodes}
        ]
        if apart:
            what = f"{len(apart)} of {len(pairs)} run pairs trained on different nodes ({join_first(apart, 2)})"
            why, scope = "the ratio includes how these nodes differ", "on different nodes"
            settle = "pairs on the same nodes (pair: node in the profile)"
            yield Finding("unequal", "different-nodes", (arm,), what, why, _SOURCE, settle, scope, settle)


def _on_slow_nodes(nodes: Nodes, plan: PlanRead) -> Iterator[Finding]:
    for slow in nodes.slow:
        for arm in plan.rivals:
            pairs = [pair for pair in nodes.pairs(plan) if pair[1].run.arm == arm]
            if any((slow.node in a.nodes) != (slow.node in b.nodes) for a, b in pairs):
                what, why = f"{slow.text[0].upper()}{slow.text[1:]}", "only one run of a pair trained on it"
                scope, settle = "with a slow node", f"runs without node {slow.node}"
                yield Finding("unequal", "slow-node", (arm,), what, why, _SOURCE, settle, scope, settle)


def with_nodes(preflight: Preflight | None, nodes: Nodes, plan: PlanRead) -> Preflight | None:
    """The preflight with the ledger's row for nodes, which is known only after the training."""
    arms = {one.run.arm for one in nodes.runs}
    if preflight is None or len(arms) < 2:
        return preflight
    pairs = [({*a.nodes}, {*b.nodes}) for a, b in nodes.pairs(plan)]
    verdict: Equality = "equal"
    why = "each pair of runs trained on the same nodes"
    if not all(a & b for a, b in pairs):
        verdict, why = "different", "nodes of one kind differ in speed"
    elif not all(a == b for a, b in pairs):
        verdict, why = "equivalent", "each pair of runs has nodes in common"
    row = LedgerRow(ROW, {arm: _nodes_text(nodes, arm) for arm in plan.arms if arm in arms}, verdict, why, _SOURCE)
    return replace(preflight, ledger=(*preflight.ledger, row))


def _nodes_text(nodes: Nodes, arm: str) -> str:
    """An arm's nodes; by seed where they vary."""
    by_seed: Mapping[int, Any] = {one.run.seed: ", ".join(one.nodes) for one in nodes.runs if one.run.arm == arm}
    if len(set(by_seed.values())) == 1:
        return str(next(iter(by_seed.values())))
    return "; ".join(f"seed {seed}: {names}" for seed, names in by_seed.items())


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


def _crowded(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """By host: the runs that trained there at the same time on the same processors and slowed one another.

    Two runs share a machine if their last attempts overlap in time on one host, and their processor affinities overlap
    or are unknown.
    """
    timed = [(run.time_span, str(run.hardware.get("host")), run) for run in runs if run.time_span and run.hardware]
    timed.sort(key=lambda one: one[0])
    crowded: dict[str, dict[str, Run]] = defaultdict(dict)
    for ((_, end), host, run), ((start, _), other_host, other) in itertools.combinations(timed, 2):
        if start < end and host == other_host and _share_processors(run, other):
            crowded[host] |= {one.run_id: one for one in (run, other)}
    return {host: list(found.values()) for host, found in crowded.items()}


def shared_machine_verdicts(runs: Sequence[Run]) -> Iterator[Verdict]:
    """A warning for each host on which runs shared the processors."""
    for host, crowd in _crowded(runs).items():
        ids = join_first([run.run_id for run in crowd], 6)
        text = (
            f"{len(crowd)} runs trained at the same time on the same processors of {host} ({ids}): "
            "they slowed one another, and not equally. Train one run at a time before you rely on a ratio"
        )
        yield Verdict("warning", "shared-machine", text)


def shared_terms(runs: Sequence[Run]) -> Iterator[Finding]:
    """The same as a finding, for the verdicts of these runs' arms."""
    for host, crowd in _crowded(runs).items():
        what = f"{len(crowd)} runs trained at the same time on {host}"
        why, scope, settle = "they slowed one another, and not equally", "on a shared machine", "runs one at a time"
        arms = tuple(dict.fromkeys(run.arm for run in crowd))
        yield Finding("unequal", "shared-machine", arms, what, why, _SOURCE, settle, scope, settle)


def _share_processors(a: Run, b: Run) -> bool:
    affinities = [run.hardware.get("affinity") for run in (a, b)]
    known = [set(cpus) for cpus in affinities if isinstance(cpus, list) and cpus]
    return len(known) < 2 or bool(known[0] & known[1])
