"""Decides which arms may be divided by the baseline at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pandas as pd

from analysis.roofline.setup import DecodeSetup, setup_of
from analysis.runs import PlanRead, Run, at
from analysis.wide import PHASE
from common.model_facts import are_different_models, same_model
from common.verdicts import Verdict

# What must be one and the same, as (code of the verdict, words); compared only where both arms tell it, and the name of
# the model only where not all tell its sum.
SAME = {
    "gpu": ("gpus-differ", "GPUs"),
    "processor": ("processors-differ", "processors, without a GPU"),
    "gpus": ("gpu-counts-differ", "numbers of GPUs"),
    "nodes": ("node-counts-differ", "numbers of nodes"),
    "model": ("models-differ", "models"),
    "model_sha256": ("models-differ", "starting models"),
}
# Two clocks, and work between a run's marks: so much more than the time between them its steps may sum to.
CLOCKS_SHARE, CLOCKS_S = 0.01, 5.0


@dataclass(frozen=True)
class Comparable:
    """What may not be divided, by (factors, arm) with the reason."""

    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """No ratio at all."""
    throughput_only: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Step time and tokens only: the phases overlap."""
    not_repeated: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Arms that are declared the same as another one and did not run as it did: they say nothing of the noise."""


def comparable(runs: Sequence[Run], plan: PlanRead, wide: pd.DataFrame) -> tuple[Comparable, list[Verdict]]:
    """What may be divided, by (factors, arm), and a verdict for everything that may not.

    No ratio at all where GPUs, their number, nodes or the model differ; step time and throughput only where the phases
    of one arm overlap. What a run does not tell is not held against it; but a warning says where engines have GPUs of
    their own and nothing tells how many. A repetition is held to the same.
    """
    refused: dict[tuple[str, str], str] = {}
    not_repeated: dict[tuple[str, str], str] = {}
    throughput: dict[tuple[str, str], str] = {}
    verdicts: list[Verdict] = []
    setups = {run.run_id: setup_of(run) for run in runs}
    facts = {run.run_id: _facts(run, setups[run.run_id]) for run in runs}
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.factors_key, run.arm), []).append(run)
    for (factors, arm), mine in groups.items():
        if other := plan.same_as.get(arm):
            reasons = other_facts(facts, groups.get((factors, other), []), mine)
            if reasons:
                not_repeated[factors, arm] = why = "; ".join(dict.fromkeys(reasons.values()))
                text = f"{arm} is said to repeat {other}{at(factors)}, and ran with {why}: it says nothing of the noise"
                verdicts.append(Verdict("error", "no-repetition", text))
        base, versus = groups.get((factors, plan.baseline), []), f"{arm} against {plan.baseline}{at(factors)}"
        if arm == plan.baseline or plan.apart(arm) or not base:
            continue
        if reasons := other_facts(facts, base, mine):
            refused[factors, arm] = "; ".join(dict.fromkeys(reasons.values()))
            for fact, reason in reasons.items():
                text = f"{arm} and {plan.baseline}{at(factors)} ran with {reason}: not comparable, no ratio is given"
                verdicts.append(Verdict("error", SAME[fact][0], text))
        verdicts += _unsure(versus, [*base, *mine], setups, facts)
        overlaps = {r.arm: r.tree.overlap for r in (*base, *mine) if r.tree.overlap}
        if overlaps:
            why = "; ".join(f"{name}: {text}" for name, text in overlaps.items())
            throughput[factors, arm] = f"the phases of a step overlap ({why}): step time and throughput only"
            text = f"{versus}: {throughput[factors, arm]}, no estimate at equal work"
            verdicts.append(Verdict("warning", "throughput-only", text))
    verdicts += _trainers([run for run in runs if not plan.apart(run.arm)])
    verdicts += clock_verdicts(runs, wide)
    verdicts += same_source_verdicts(runs)
    return Comparable(refused, throughput, not_repeated), list(dict.fromkeys(verdicts))


def _unsure(
    versus: str, runs: Sequence[Run], setups: Mapping[str, DecodeSetup], facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[Verdict]:
    """Whether nothing tells that the runs of two arms have one model, or how many GPUs their engines have."""
    models = sorted({str(one["model"]) for r in runs if "model" in (one := facts[r.run_id])})
    if any(not same_model(*two) and not are_different_models(*two) for two in combinations(models, 2)) and not all(
        "model_sha256" in facts[r.run_id] for r in runs
    ):
        text = (
            f"{versus}: the models are told as {' and '.join(models)}; the name of a folder does not tell what is in "
            "it, so that nothing says whether they are one. import.model tells it"
        )
        yield Verdict("warning", "models-unknown", text)
    apart = [(r.arm, facts[r.run_id]) for r in runs if setups[r.run_id].separate_engines]
    uncounted = dict.fromkeys(arm for arm, told in apart if "gpus" not in told and told.get("gpu") != "no GPU")
    if uncounted:
        text = (
            f"{versus}: the engines of {' and '.join(uncounted)} have GPUs of their own, and nothing tells how many: a "
            "ratio may be one of numbers of GPUs. Say it in import.nodes and import.gpus_per_node, which are those of "
            "the whole run"
        )
        yield Verdict("warning", "gpu-count-unknown", text)


def ran_otherwise(base: Sequence[Run], mine: Sequence[Run]) -> dict[str, str]:
    """In what two groups of runs differ of what must be one and the same, each with the two values in words."""
    return other_facts({run.run_id: _facts(run, setup_of(run)) for run in (*base, *mine)}, base, mine)


def other_facts(facts: Mapping[str, Mapping[str, Any]], base: Sequence[Run], mine: Sequence[Run]) -> dict[str, str]:
    """The facts in `SAME` that both sides tell and in which they differ, each with the two values in words."""
    found = {}
    summed = all("model_sha256" in facts[r.run_id] for r in (*base, *mine))
    for fact, (_, words) in SAME.items():
        told = [sorted({facts[r.run_id][fact] for r in side if fact in facts[r.run_id]}) for side in (base, mine)]
        differ = len({*told[0], *told[1]}) > 1
        if fact == "model":
            differ = not summed and any(are_different_models(*two) for two in combinations({*told[0], *told[1]}, 2))
        if all(told) and differ:
            values = [", ".join(map(_short, side)) for side in told]
            found[fact] = f"other {words} ({base[0].arm}: {values[0]}; {mine[0].arm}: {values[1]})"
    return found


def same_source_verdicts(runs: Sequence[Run]) -> Iterator[Verdict]:
    """Imported runs that are made of the same steps of the same bytes: one run was taken for two."""
    readers: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        told = [str(one["sha256"]) for one in run.done.get("sources") or () if run.imported and one.get("sha256")]
        if told:
            readers.setdefault(tuple(sorted(told)), []).append(run)
    columns = ["step", "kind", "name", "value"]
    for some in readers.values():
        first = some[0].steps[columns].astype({"kind": str, "name": str})
        same = [run for run in some if first.equals(run.steps[columns].astype({"kind": str, "name": str}))]
        if len(same) > 1:
            names = ", ".join(f"{run.run_id} (arm {run.arm})" for run in same)
            text = (
                f"the runs {names} are made of the same bytes: one run was taken for several, and what they have in "
                "common says nothing of engines or of chance. Give each run the files of its own"
            )
            yield Verdict("warning", "same-source", text)


def _facts(run: Run, setup: DecodeSetup) -> dict[str, Any]:
    """What a run tells of the facts in `SAME`."""
    found: dict[str, Any] = {"gpu": setup.gpu, "gpus": setup.gpus, "nodes": setup.nodes}
    if run.without_gpu:
        # Trained without a GPU: what the workload would have liked is not what it ran on.
        found = {"nodes": setup.nodes, "gpu": "no GPU", "processor": run.hardware.get("cpu")}
    found |= {"model": setup.model, "model_sha256": (run.done.get("inputs") or {}).get("model_sha256") or None}
    return {name: value for name, value in found.items() if value is not None}


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text


def _trainers(runs: Sequence[Run]) -> list[Verdict]:
    by_arm = {run.arm: str(run.spec.get("trainer")) for run in runs}
    if len(set(by_arm.values())) < 2:
        return []
    told = "; ".join(f"{arm}: {trainer}" for arm, trainer in by_arm.items())
    text = (
        f"the arms have different trainers ({told}): a step is what each of them times as one, so that the ratio is of "
        "trainer and engine together"
    )
    return [Verdict("note", "trainers-differ", text)]


def clock_verdicts(runs: Sequence[Run], wide: pd.DataFrame) -> Iterator[Verdict]:
    """Runs whose steps sum to more than the time from their start to their end: some clock jumped."""
    if PHASE + "step" not in wide:
        return
    of_run = dict(iter(wide[["run_id", "attempt", PHASE + "step"]].groupby("run_id", sort=False)))
    for run in runs:
        if run.time_span is None or run.run_id not in of_run:
            continue
        rows = of_run[run.run_id]
        if "attempt" in run.done:
            rows = rows[rows["attempt"] == run.done["attempt"]]
        steps_s, lived_s = float(rows[PHASE + "step"].clip(lower=0).sum()), run.time_span[1] - run.time_span[0]
        if lived_s < 0 or steps_s > lived_s * (1 + CLOCKS_SHARE) + CLOCKS_S:
            text = (
                f"run {run.run_id}: its steps sum to {steps_s:,.0f} s, from its start to its end are {lived_s:,.0f} s: "
                "a clock jumped, or a time is wrong. Look at its slowest steps before believing a ratio"
            )
            yield Verdict("warning", "clock-jumped", text)
