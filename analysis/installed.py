"""Lists what was installed in each stack, how it differs from its lock, and in what the arms' stacks differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.fairness import Setting, by_arm
from analysis.runs import PlanRead, Run
from common.dotted import as_mapping, as_text
from common.verdicts import Verdict, count_of

# Of verify.json, besides its packages.
_ALONE = ("python", "platform", "backend", "cuda", "nvcc")
COLUMNS = ["stack", "lock_id", "kind", "name", "version"]


def origin_of(run: Run) -> Mapping[str, Any]:
    """Where the run's stack came from when it was trained: its state, accepted differences, given wheels.

    The run's own record decides: another environment may lie in the stack's folder now. Runs in an image, and runs of
    built stacks before each run recorded it, have none; only an image is then taken from the stack's check. Empty for a
    stack that was built from its lock alone.
    """
    origin = run.done.get("stack_origin")
    if origin is None:
        now = (run.verify or {}).get("origin")
        origin = now if isinstance(now, Mapping) and "image" in now else {}
    if not isinstance(origin, Mapping):
        return {}
    return {key: value for key, value in origin.items() if (key, value) != ("state", "built")}


@dataclass(frozen=True)
class LockDifference:
    """One package, or Python, of a registered stack that is not as the stack's lock says."""

    stack: str
    name: str
    locked: str
    there: str


def lock_differences(runs: Sequence[Run]) -> list[LockDifference]:
    """What the user accepted of each registered stack, once each."""
    found = [
        LockDifference(stack_of(run)[0], name, as_text(origin.get("differences", {}).get(name, "?")), as_text(there))
        for run in runs
        for origin in [origin_of(run)]
        for name, there in origin.get("accepted", {}).items()
    ]
    return list(dict.fromkeys(found))


def origin_verdicts(run: Run) -> list[Verdict]:
    """That a run's stack was registered and not built, with what is not as its lock says."""
    origin = origin_of(run)
    if "python" not in origin:
        return []
    stack, lock_id = stack_of(run)
    differ = lock_differences([run])
    extras = [one for one in differ if one.locked == "not installed"]
    named = [f"{one.name} {one.there} (lock: {one.locked})" for one in differ if one not in extras]
    more = [count_of(len(extras), "package") + " that the lock does not have"] if extras else []
    what = "; ".join([", ".join(named)] * bool(named) + more)
    text = f"stack {stack} ({lock_id}) is {origin.get('state')}: {origin['python']} was there already"
    return [Verdict("warning", "stack-registered", f"{text}; not as its lock: {what}" if what else text)]


def mixed_origin_verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """That the runs of an arm were trained in different environments of one stack: a warning for each such arm."""
    by_arm_name: dict[tuple[str, str], dict[str, str]] = {}
    for run in runs:
        where = by_arm_name.setdefault((run.arm, stack_of(run)[0]), {})
        where.setdefault(as_text(origin_of(run)), run.run_id)
    return [
        Verdict(
            "warning",
            "stack-origin-mixed",
            f"arm {arm}: {' and '.join(where.values())} were trained in different environments of the stack {stack}, "
            "one of which was registered or given a wheel; train the arm's runs in one of them",
        )
        for (arm, stack), where in by_arm_name.items()
        if len(where) > 1
    ]


def installed(verify: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(kind, name) -> version of everything that a stack's check found.

    Kinds: stack, conda, pip, accepted (what is not as the lock says), wheel (installed in place of a source build); of
    runs also stand-in (what stands in for an absent package).
    """
    found = {("stack", name): as_text(verify[name]) for name in _ALONE if verify.get(name) is not None}
    origin = verify.get("origin") or {}
    for name in ("state", "python", "image"):
        if name in origin:
            found["stack", "interpreter" if name == "python" else name] = as_text(origin[name])
    for name, there in origin.get("accepted", {}).items():
        found["accepted", name] = f"{there} (lock: {origin.get('differences', {}).get(name, '?')})"
    for wheel in origin.get("wheels", []):
        found["wheel", str(wheel["package"])] = f"{wheel['file']} sha256:{wheel['sha256']}"
    conda = verify.get("conda")
    for package in conda if isinstance(conda, list) else []:
        if isinstance(package, Mapping) and "name" in package:
            words = (str(package[key]) for key in ("version", "build") if package.get(key))
            found["conda", str(package["name"])] = " ".join(words)
    packages = verify.get("packages")
    for name, version in packages.items() if isinstance(packages, Mapping) else ():
        found["pip", str(name)] = as_text(version)
    return found


def installed_settings(runs: Sequence[Run], plan: PlanRead) -> list[Setting]:
    """Every installed thing's version by arm; empty unless all runs' stacks were checked."""
    if not runs or any(run.verify is None for run in runs):
        return []
    by_stack = {
        stack: {name if kind == "stack" else f"{kind} {name}": version for (kind, name), version in found.items()}
        for stack, found in _by_stack(runs).items()
    }
    return by_arm(runs, plan, {run.run_id: by_stack[stack_of(run)] for run in runs})


def _by_stack(runs: Sequence[Run]) -> dict[tuple[str, str], dict[tuple[str, str], str]]:
    """What is installed in each stack that was used, as its check says; its origin and stand-ins as the runs say."""
    checks = {stack_of(run): run.verify and {**run.verify, "origin": origin_of(run)} for run in runs}
    found = {stack: installed(verify or {}) for stack, verify in checks.items()}
    for run in runs:
        engine = as_mapping(as_mapping(run.done.get("resolved")).get("engine"))
        for name, told in as_mapping(engine.get("stand_ins")).items():
            found[stack_of(run)]["stand-in", str(name)] = as_text(told)
    return found


def environment_table(runs: Sequence[Run]) -> pd.DataFrame:
    """The exact installed state of every stack that was used: one row per stack and thing (columns: `COLUMNS`)."""
    rows = [(*stack, *thing, version) for stack, found in _by_stack(runs).items() for thing, version in found.items()]
    return pd.DataFrame(rows, columns=COLUMNS).astype(str)


def stack_of(run: Run) -> tuple[str, str]:
    """A run's stack and lock."""
    return str(run.spec.get("stack", "")), str(run.spec.get("lock_id", ""))
