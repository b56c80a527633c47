"""Lists what differs between the arms besides what is compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.runs import PlanRead, Run
from common.dotted import as_mapping, as_text, flatten, settings_by_key
from common.verdicts import Verdict
from trainers.reward_settings import without_code

SPEC_PARTS = ("trainer", "engine", "stack", "workload", "options", "env", "trainer_args")
HARDWARE = ("host", "cpu", "cpus", "threads", "memory_gib", "gpus", "driver")
MANY = 4


@dataclass(frozen=True)
class Setting:
    """One setting's values by arm, as texts; "" where an arm does not have it."""

    key: str
    values: dict[str, str]

    @property
    def differs(self) -> bool:
        return len(set(self.values.values())) > 1

    @property
    def only_some_have_it(self) -> bool:
        return self.differs and "" in self.values.values()


def run_settings(run: Run) -> dict[str, str]:
    """Everything a run was asked for, and what the trainer and engine finally held, by dotted key.

    A run's own id and fingerprint inside a value (in a path, say) are replaced by their names: they differ
    between any two runs and tell nothing.
    """
    parts = without_code({name: run.spec[name] for name in SPEC_PARTS if name in run.spec})
    if isinstance(parts.get("trainer_args"), Mapping):
        parts["trainer_args"] = settings_by_key(parts["trainer_args"])
    parts["resolved"] = run.done.get("resolved", {})
    held = flatten(parts, keep_plus=True)
    settings = {key: json.dumps(value, sort_keys=True, ensure_ascii=False) for key, value in held.items()}
    names = {run.run_id: "<run_id>"}
    fingerprint = run.spec.get("fingerprint")
    if isinstance(fingerprint, str) and len(fingerprint) >= 12:
        names |= {fingerprint: "<fingerprint>", fingerprint[:12]: "<fingerprint>"}
    for key, text in settings.items():
        # Only in paths and names of runs: a run that is called "vllm" must not hide the engine's name.
        if "/" in text or key.endswith("run_name"):
            for found, name in names.items():
                text = text.replace(found, name)
            settings[key] = text
    return settings


def by_arm(
    runs: Sequence[Run], plan: PlanRead, of: Mapping[str, Mapping[str, str]], told_only: bool = False
) -> list[Setting]:
    """Each key's values by arm, from one mapping per run id; values that vary inside an arm are listed.

    With `told_only` the runs of an arm that do not tell a value do not count, where others of it do.
    """
    keys = list(dict.fromkeys(key for run in runs for key in of[run.run_id]))
    arms = [a for a in plan.arms if any(r.arm == a for r in runs)]
    settings = []
    for key in keys:
        values = {}
        for arm in arms:
            seen = sorted({of[r.run_id].get(key, "") for r in runs if r.arm == arm})
            if len(seen) > 1:
                seen = [value or "not set" for value in seen if value or not told_only]
            more = f", … ({len(seen)} values)" if len(seen) > MANY else ""
            values[arm] = ", ".join(seen[:MANY]) + more
        settings.append(Setting(key, values))
    return settings


def config_settings(runs: Sequence[Run], plan: PlanRead, told_only: bool = False) -> list[Setting]:
    """All settings, in the order of the specs."""
    return by_arm(runs, plan, {r.run_id: run_settings(r) for r in runs}, told_only)


def settings_table(settings: Sequence[Setting], plan: PlanRead) -> pd.DataFrame:
    """Settings as columns setting, value/<arm> (texts as in the page, "" where an arm does not have it) and differs."""
    rows = [
        {"setting": s.key, **{f"value/{arm}": s.values.get(arm, "") for arm in plan.arms}, "differs": s.differs}
        for s in settings
    ]
    return pd.DataFrame(rows, columns=["setting", *(f"value/{arm}" for arm in plan.arms), "differs"])


def reported_settings(runs: Sequence[Run], plan: PlanRead, part: str, told_only: bool = False) -> list[Setting]:
    """What each arm's jobs reported of a part of done.json: versions, or hardware (host, processor, accelerators)."""
    return by_arm(runs, plan, {r.run_id: _texts(r.done.get(part)) for r in runs}, told_only)


def _texts(raw: Any) -> dict[str, str]:
    return {str(key): as_text(value) for key, value in as_mapping(raw).items() if value is not None}


def fairness_verdicts(runs: Sequence[Run], plan: PlanRead) -> Iterator[Verdict]:
    """Differences between arms in hardware, threads, data or model: the comparison is not equal then.

    Only the arms that tell a fact are compared in it: what the runs of one do not tell is not held against any.
    """
    for setting in reported_settings(runs, plan, "hardware", told_only=True):
        if setting.key in HARDWARE:
            yield from _differs("hardware-differs", f"hardware: {setting.key}", setting)
    inputs = {"data_sha256": "training data", "model_sha256": "starting model", "reward_models_sha256": "reward models"}
    for name, what in inputs.items():
        of = {r.run_id: {name: str((r.done.get("inputs") or {}).get(name) or "")[:12]} for r in runs}
        for setting in by_arm(runs, plan, of, told_only=True):
            yield from _differs("inputs-differ", what, setting)
    for setting in config_settings(runs, plan, told_only=True):
        if setting.key.startswith("workload."):
            yield from _differs("workload-differs", setting.key, setting)


def _differs(code: str, what: str, setting: Setting) -> list[Verdict]:
    told = {arm: value for arm, value in setting.values.items() if value}
    if len(set(told.values())) < 2:
        return []
    values = "; ".join(f"{arm}: {value}" for arm, value in told.items())
    return [Verdict("warning", code, f"the arms differ in {what} ({values}): the work or the machine is not equal")]
