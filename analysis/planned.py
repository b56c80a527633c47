"""Reads a plan (its arms, its runs and how they are compared), and writes factor combinations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.contracts import PlanFile, read_file
from common.errors import UserError
from common.files import read_json_object
from common.verdicts import resolving_look
from trainers.protocol import Trainer
from trainers.registry import trainer_named

EQUAL_WITHIN = 1.05
"""The ratio within which arms are equal, where an experiment has none of its own."""
SPREAD = 0.16
"""How far two runs of one configuration differ at most at equal work on one machine, in public logs
(docs/estimates.md)."""


@dataclass(frozen=True)
class PlanRead:
    """The parts of plan.json that a report uses."""

    experiment: str
    description: str
    baseline: str
    arms: dict[str, dict[str, Any]]
    warmup_steps: int
    runs: tuple[str, ...]
    fingerprints: dict[str, str]
    """By run."""
    report: dict[str, Any] = field(default_factory=dict)
    """The report's settings: price_per_gpu_hour, currency, to_steps, spread."""
    same_as: dict[str, str] = field(default_factory=dict)
    """The arms that repeat another arm, and which."""
    until: float = EQUAL_WITHIN
    """The ratio within which arms are equal; with `most`, also the one that ends the experiment."""
    most: int = 0
    """The most pairs of runs, where each is looked at before the next; 0 where their number is fixed."""

    @property
    def rivals(self) -> list[str]:
        """The arms that are compared with the baseline: those that train if it trains, else the engines alone."""
        return [arm for arm in self.arms if arm != self.baseline and not self.is_other_kind(arm)]

    @property
    def spread(self) -> float:
        """How far repeated runs may differ, as a share."""
        return float(self.report.get("spread") or SPREAD)

    @property
    def step_of(self) -> str:
        """What a step of the baseline is, and of each of its rivals."""
        return self._trainer(self.baseline).step_of

    @property
    def engines_only(self) -> bool:
        """Whether no arm trains: each runs an engine alone."""
        return not any(self._trainer(arm).trains for arm in self.arms)

    def is_other_kind(self, arm: str) -> bool:
        """Whether the steps of arm and baseline differ: of a training, of an engine alone, or of single requests."""
        kinds = {one.step for one in map(self._trainer, (arm, self.baseline))}
        return len(kinds) > 1

    def of_other_kinds(self) -> list[PlanRead]:
        """The same plan for each other kind of step that several arms have; the first of these is the baseline."""
        arms: dict[str, list[str]] = {}
        for arm in filter(self.is_other_kind, self.arms):
            arms.setdefault(self._trainer(arm).step, []).append(arm)
        return [replace(self, baseline=some[0]) for some in arms.values() if len(some) > 1]

    def imported(self, *arms: str) -> list[str]:
        """Those of the arms whose runs are imported: no run can be added to them."""
        return [arm for arm in arms if self.arms[arm].get("import")]

    def trains(self, arm: str) -> bool:
        """Whether an arm trains."""
        return self._trainer(arm).trains

    def step_name(self, arm: str) -> str:
        """What a step of an arm is, in words."""
        return f"a {self._trainer(arm).step}"

    def repeats(self, arm: str) -> str:
        """The arm that `arm` repeats, or the baseline that repeats `arm`; otherwise ""."""
        of_baseline = self.baseline if self.same_as.get(self.baseline) == arm else ""
        return self.same_as.get(arm, of_baseline)

    def _trainer(self, arm: str) -> Trainer:
        return trainer_named(str(self.arms[arm].get("trainer")))


def read_plan(path: Path, baseline: str | None = None) -> PlanRead:
    """plan.json, with another baseline where one is given; the `UserError` names the wrong key."""
    return planned(
        read_file(PlanFile, path, "the plan", ("experiment", "arms", "runs", "fingerprints", "warmup_steps")), baseline
    )


def planned(raw: PlanFile, baseline: str | None = None) -> PlanRead:
    """The content of plan.json, with another baseline where one is given."""
    arms = raw["arms"]
    chosen = baseline if baseline is not None else raw.get("baseline")
    if chosen not in arms:
        raise UserError(f"the baseline must be one of the arms {', '.join(arms)} (got {chosen!r})")
    return PlanRead(
        experiment=str(raw["experiment"]),
        description=str(raw.get("description") or ""),
        baseline=str(chosen),
        arms=arms,
        warmup_steps=raw["warmup_steps"],
        runs=tuple(raw["runs"]),
        fingerprints=raw["fingerprints"],
        report=raw.get("report") or {},
        same_as={name: arm["same_as"] for name, arm in arms.items() if arm.get("same_as") is not None},
        until=float(raw.get("until", EQUAL_WITHIN)),
        most=int(raw.get("most", 0)),
    )


def without_unneeded(plan: PlanRead, results: Path) -> PlanRead:
    """The plan with the runs that its looks wanted (`seeds: {until, most}`); the others were never trained."""
    files = results / "looks"
    found = resolving_look(lambda pairs: _look(files / f"{pairs}.json"), plan.until, plan.most)
    return plan if found is None else replace(plan, runs=tuple(run for run in plan.runs if run in found[1]["runs"]))


def _look(path: Path) -> dict[str, Any]:
    return read_json_object(path, "the pipeline") if path.is_file() else {}


def factors_key(factors: Mapping[str, Any]) -> str:
    """A factor combination, its values by dotted path, as canonical JSON; empty without factors."""
    return json.dumps(dict(factors), sort_keys=True, ensure_ascii=False) if factors else ""


def factors_of(key: str) -> dict[str, Any]:
    """The factor combination of a key."""
    factors: dict[str, Any] = json.loads(key) if key else {}
    return factors


def factors_label(key: str) -> str:
    """A factor combination for people: `temperature = 0.9, num_generations = 8`; empty without factors."""
    factors = factors_of(key)
    names = short_names(list(factors))
    return ", ".join(f"{names[path]} = {value}" for path, value in factors.items())


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each swept option's path, or whole paths where two would have the same name."""
    short = {path: path.rsplit(".", 1)[-1] for path in paths}
    return short if len(set(short.values())) == len(short) else {path: path for path in paths}


def at(factors: str) -> str:
    """` at temperature = 0.9`, empty without factors."""
    return f" at {factors_label(factors)}" if factors else ""
