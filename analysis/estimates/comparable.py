"""Decides which arms can be compared with the baseline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pandas as pd

from analysis.planned import PlanRead, at
from analysis.roofline.setup import setup_of
from analysis.runs import Run
from analysis.wide import PHASE
from common.model_facts import are_different_models, same_model
from common.verdicts import Verdict
from engines import UNKNOWN
from trainers.registry import QUANTITIES

# The facts that must be equal, as (code of the finding, text). Only facts known of both arms are compared, and the
# model's name only where a checksum is missing.
SAME = {
    "gpu": ("gpus-differ", "GPUs"),
    "processor": ("processors-differ", "processors, without a GPU"),
    "gpus": ("gpu-counts-differ", "numbers of GPUs"),
    "nodes": ("node-counts-differ", "numbers of nodes"),
    "model": ("models-differ", "models"),
    "model_sha256": ("models-differ", "starting models"),
    "column": ("columns-differ", "columns of the step's seconds"),
}
# A synchronous step that generates less than this trains on hardly anything.
GENERATES_LEAST = 0.08
# Names of scalars that are above 0 only in loops whose policy has moved on since its responses began; verl's span of
# the versions that sampled a response is 1 in any loop.
STALE = re.compile("stale|off_policy/(?!.*spans)|async/")


@dataclass(frozen=True)
class Comparable:
    """What cannot be compared, by (factors, arm), with the reason."""

    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Arms without any ratio."""
    settle: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """What would make these comparable, where runs would."""
    throughput_only: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Arms with ratios of step time and tokens only, because phases overlap."""
    unit_unsaid: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Arms read from plain tables whose unit nobody says, with what would say it."""
    per_gpu: frozenset[tuple[str, str]] = frozenset()
    """Arms whose GPUs may be compared by what they do: a loop overlaps, or only the number of GPUs differs."""


ALL_COMPARABLE = Comparable()
UNSAID_UNIT = (
    "nothing says the unit of {name}: give --unit s if all are seconds, or end the column's name with it "
    "(step_time_min)"
)


def comparable(runs: Sequence[Run], plan: PlanRead, wide: pd.DataFrame) -> tuple[Comparable, list[Verdict]]:
    """What cannot be compared, and the findings about it.

    There is no ratio where GPUs, their number, nodes or the model differ, and only step time and throughput where the
    phases of one arm overlap. An unknown fact prevents no ratio, but a warning reports separate engines with an unknown
    number of GPUs. The same rules apply to repetitions.
    """
    refused: dict[tuple[str, str], str] = {}
    settle: dict[tuple[str, str], str] = {}
    throughput: dict[tuple[str, str], str] = {}
    unsaid: dict[tuple[str, str], str] = {}
    per_gpu: set[tuple[str, str]] = set()
    verdicts: list[Verdict] = []
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.factors_key, run.arm), []).append(run)
    beside = _generates_beside(runs, wide)
    for (factors, arm), mine in groups.items():
        other = plan.same_as.get(arm, "")
        if other and (reasons := different_conditions(groups.get((factors, other), []), mine)):
            why = "; ".join(dict.fromkeys(reasons.values()))
            text = f"{arm} should repeat {other}{at(factors)}, but ran with {why}: it does not measure noise"
            verdicts.append(Verdict("error", "no-repetition", text, (arm,)))
        base, versus = groups.get((factors, plan.baseline), []), f"{arm} against {plan.baseline}{at(factors)}"
        if arm == plan.baseline or plan.is_other_kind(arm) or not base:
            continue
        if reasons := different_conditions(base, mine):
            refused[factors, arm] = "; ".join(dict.fromkeys(reasons.values()))
            settle[factors, arm] = f"runs with the same {' and '.join(SAME[fact][1] for fact in reasons)}"
            for fact, reason in reasons.items():
                text = f"{arm} and {plan.baseline}{at(factors)} ran with {reason}: not comparable, no ratio is given"
                verdicts.append(Verdict("error", SAME[fact][0], text, (arm,)))
        if swapped := list(dict.fromkeys(_other_engines([*base, *mine], plan))):
            refused[factors, arm] = why = " and ".join(swapped)
            verdicts.append(Verdict("error", "other-engine", f"{versus}: {why}, so no ratio is given", (arm,)))
        verdicts += _unknown_facts(arm, versus, [*base, *mine])
        columns = [column for run in (*base, *mine) if (column := run.done.get("column"))]
        if names := [column["name"] for column in columns if column["unit"] is None]:
            unsaid[factors, arm] = UNSAID_UNIT.format(name=names[0])
        overlaps = {r.arm: text for r in (*base, *mine) if (text := r.tree.overlap or beside[r.run_id])}
        if overlaps:
            why = "; ".join(f"{name}: {text}" for name, text in overlaps.items())
            throughput[factors, arm] = f"the phases of a step overlap ({why}): step time and throughput only"
            text = f"{versus}: {throughput[factors, arm]}, no estimate at equal work"
            verdicts.append(Verdict("warning", "throughput-only", text, (arm,)))
        if (overlaps or reasons) and {*reasons} <= {"gpus", "nodes"}:
            per_gpu.add((factors, arm))
    once = list(dict.fromkeys(verdicts))
    return Comparable(refused, settle, throughput, unsaid, frozenset(per_gpu)), once


def _generates_beside(runs: Sequence[Run], wide: pd.DataFrame) -> dict[str, str]:
    """Why a run without a known mode generates while it trains: by its staleness, or by hardly any generation in it.

    By run; "" where it does not.
    """
    stale = [name for name in map(str, wide) if name not in QUANTITIES and STALE.search(name)]
    phases = [name for name in map(str, wide) if name.startswith(PHASE)]
    of_run = wide[["run_id", *stale, *phases]].groupby("run_id")
    highest: dict[Any, Any] = of_run[stale].max().to_dict("index")
    total_s: dict[Any, Any] = of_run[phases].sum().to_dict("index")
    found = dict.fromkeys((run.run_id for run in runs), "")
    for run in runs:
        if (seconds := total_s.get(run.run_id)) is None:
            continue
        timed = [PHASE + path for path in run.tree.generating if PHASE + path in seconds]
        timed_s, step_s = sum(seconds[name] for name in timed), seconds[PHASE + run.tree.root]
        if old := [name for name in stale if highest[run.run_id][name] > 0]:
            found[run.run_id] = f"its log has {old[0]}"
        elif 0 < timed_s < GENERATES_LEAST * step_s:
            found[run.run_id] = f"generation takes {timed_s / step_s:.0%} of its step"
    return found


def _other_engines(runs: Sequence[Run], plan: PlanRead) -> Iterator[str]:
    """Arms of a script that are named for another engine than their logs say that they ran with."""
    for run in runs:
        named, engine = str(plan.arms[run.arm].get("engine", UNKNOWN)), run.spec.get("engine")
        if named not in (UNKNOWN, engine):
            yield f"{run.arm} is an arm of {named}, its log says {engine}"


def _unknown_facts(rival: str, versus: str, runs: Sequence[Run]) -> Iterator[Verdict]:
    """Warns where it is unknown whether two arms have the same model, or how many GPUs their engines have."""
    facts = [_facts_of(run) for run in runs]
    models = sorted({str(known["model"]) for known in facts if "model" in known})
    unclear = any(not same_model(*two) and not are_different_models(*two) for two in combinations(models, 2))
    if unclear and not all("model_sha256" in known for known in facts):
        text = (
            f"{versus}: the models are {' and '.join(models)}. The name of a folder does not identify a model, so it "
            "is unknown whether they are the same: set import.model"
        )
        yield Verdict("warning", "models-unknown", text, (rival,))
    separate = [(run.arm, known) for run, known in zip(runs, facts, strict=True) if setup_of(run).separate_engines]
    uncounted = dict.fromkeys(arm for arm, known in separate if "gpus" not in known and known.get("gpu") != "no GPU")
    if uncounted:
        text = (
            f"{versus}: the engines of {' and '.join(uncounted)} have an unknown number of GPUs of their own, so a "
            "ratio may come from the number of GPUs. Set import.nodes and import.gpus_per_node of the whole run"
        )
        yield Verdict("warning", "gpu-count-unknown", text, (rival,))


def different_conditions(base: Sequence[Run], mine: Sequence[Run]) -> dict[str, str]:
    """The facts in `SAME` in which two groups of runs differ, each with the two values."""
    facts, found = [[_facts_of(run) for run in side] for side in (base, mine)], {}
    summed = all("model_sha256" in known for side in facts for known in side)
    for fact, (_, label) in SAME.items():
        values = [sorted({known[fact] for known in side if fact in known}) for side in facts]
        different = len({*values[0], *values[1]}) > 1
        if fact == "model":
            pairs = combinations({*values[0], *values[1]}, 2)
            different = not summed and any(are_different_models(*pair) for pair in pairs)
        if all(values) and different:
            shown = [", ".join(map(_short, side)) for side in values]
            found[fact] = f"other {label} ({base[0].arm}: {shown[0]}; {mine[0].arm}: {shown[1]})"
    return found


def _facts_of(run: Run) -> dict[str, Any]:
    """The known facts of `SAME` of a run."""
    setup = setup_of(run)
    found: dict[str, Any] = {"gpu": setup.gpu, "gpus": setup.gpus, "nodes": setup.nodes}
    if run.without_gpu:
        # The workload's GPUs were not used.
        found = {"nodes": setup.nodes, "gpu": "no GPU", "processor": run.hardware.get("cpu")}
    found["column"] = (run.done.get("column") or {}).get("name")
    found |= {"model": setup.model, "model_sha256": (run.done.get("inputs") or {}).get("model_sha256") or None}
    return {name: value for name, value in found.items() if value is not None}


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text
