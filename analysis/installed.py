"""Lists what is installed in the stacks of the runs, and where a stack comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.runs import Run
from common.dotted import as_mapping, as_text
from common.verdicts import Verdict

# The fields of verify.json besides its packages.
_STACK_FIELDS = ("python", "platform", "backend", "cuda", "nvcc")
ENVIRONMENT = ["stack", "lock_id", "kind", "name", "version"]


def origin_of(run: Run) -> Mapping[str, Any]:
    """The origin of the run's stack at its training: its state, and where it comes from.

    The run's own record counts, because the stack's folder may have another environment now. Runs in an image, and old
    runs of built stacks, have no record: then only an image is read from the stack's check. Empty for a stack that was
    built from its lock alone.
    """
    origin = run.done.get("stack_origin")
    if origin is None:
        origin = as_mapping((run.verify or {}).get("origin"))
        origin = origin if "image" in origin else {}
    return {key: value for key, value in as_mapping(origin).items() if (key, value) != ("state", "built")}


def origin_verdicts(run: Run) -> Iterator[Verdict]:
    """A warning where a run's stack is an environment as found, not built from its lock."""
    origin = origin_of(run)
    if "python" in origin:
        stack, lock_id = stack_of(run)
        text = f"stack {stack} ({lock_id}) is {origin.get('state')}: {origin['python']} was there already"
        yield Verdict("warning", "stack-registered", text)


def installed(verify: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(kind, name) -> version of everything that a stack's check found.

    Kinds: stack, conda, pip, source (of a package in an environment as found: a commit, a file's hash), and from the
    runs stand-in (a replacement of an absent package).
    """
    found = {("stack", name): as_text(verify[name]) for name in _STACK_FIELDS if verify.get(name) is not None}
    origin = verify.get("origin") or {}
    for name in ("state", "python", "image"):
        if name in origin:
            found["stack", "interpreter" if name == "python" else name] = as_text(origin[name])
    for name, source in origin.get("sources", {}).items():
        found["source", name] = as_text(source)
    conda = verify.get("conda")
    for package in conda if isinstance(conda, list) else []:
        if isinstance(package, Mapping) and "name" in package:
            parts = (str(package[key]) for key in ("version", "build") if package.get(key))
            found["conda", str(package["name"])] = " ".join(parts)
    for name, version in as_mapping(verify.get("packages")).items():
        found["pip", str(name)] = as_text(version)
    return found


def _by_stack(runs: Sequence[Run]) -> dict[tuple[str, str], dict[tuple[str, str], str]]:
    """What each used stack contains: by its check, with the origin and the stand-ins by the runs."""
    checks = {stack_of(run): run.verify and {**run.verify, "origin": origin_of(run)} for run in runs}
    found = {stack: installed(verify or {}) for stack, verify in checks.items()}
    for run in runs:
        engine = as_mapping(as_mapping(run.done.get("resolved")).get("engine"))
        for name, stand_in in as_mapping(engine.get("stand_ins")).items():
            found[stack_of(run)]["stand-in", str(name)] = as_text(stand_in)
    return found


def environment_table(runs: Sequence[Run]) -> pd.DataFrame:
    """The exact installed state of every used stack: one row per stack and package or tool (columns: `ENVIRONMENT`)."""
    rows = [(*stack, *thing, version) for stack, found in _by_stack(runs).items() for thing, version in found.items()]
    return pd.DataFrame(rows, columns=ENVIRONMENT).astype(str)


def stack_of(run: Run) -> tuple[str, str]:
    """A run's stack and lock."""
    return str(run.spec.get("stack", "")), str(run.spec.get("lock_id", ""))
