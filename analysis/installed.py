"""What was installed in each stack, and in what do the arms' stacks differ?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.fairness import Setting, by_arm
from analysis.runs import Plan, Run

# Of verify.json, besides its packages.
_ALONE = ("python", "platform", "backend", "cuda", "nvcc")
COLUMNS = ["stack", "lock_id", "kind", "name", "version"]


def installed(verify: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(kind, name) -> version of everything that a stack's check found; kinds: stack, conda and pip."""
    found = {("stack", name): _text(verify[name]) for name in _ALONE if verify.get(name) is not None}
    conda = verify.get("conda")
    for package in conda if isinstance(conda, list) else []:
        if isinstance(package, Mapping) and "name" in package:
            words = (str(package[key]) for key in ("version", "build") if package.get(key))
            found["conda", str(package["name"])] = " ".join(words)
    packages = verify.get("packages")
    for name, version in packages.items() if isinstance(packages, Mapping) else ():
        found["pip", str(name)] = _text(version)
    return found


def installed_settings(runs: Sequence[Run], plan: Plan) -> list[Setting]:
    """Every installed thing's version by arm; empty unless all runs' stacks were checked."""
    if not runs or any(run.verify is None for run in runs):
        return []
    by_stack = {stack_of(run): _labelled(run.verify) for run in runs}
    return by_arm(runs, plan, {run.run_id: by_stack[stack_of(run)] for run in runs})


def _labelled(verify: Mapping[str, Any] | None) -> dict[str, str]:
    return {name if kind == "stack" else f"{kind} {name}": v for (kind, name), v in installed(verify or {}).items()}


def environment_table(runs: Sequence[Run]) -> pd.DataFrame:
    """The exact installed state of every stack that was used: one row per stack and thing (columns: `COLUMNS`)."""
    rows = []
    for (stack, lock_id), verify in {stack_of(run): run.verify for run in runs}.items():
        for (kind, name), version in installed(verify or {}).items():
            rows.append((stack, lock_id, kind, name, version))
    return pd.DataFrame(rows, columns=COLUMNS).astype(str)


def stack_of(run: Run) -> tuple[str, str]:
    """A run's stack and lock."""
    return str(run.spec.get("stack", "")), str(run.spec.get("lock_id", ""))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
