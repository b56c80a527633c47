"""Which release's timers does an imported run have, and in which of its loops?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.errors import UserError
from analysis.imported_claims import require_of_arm
from analysis.sources.record import TIMERS, Imported, SourceRead
from analysis.timers import TimerTree, declared_trees, mode_of, nested, tree_for
from analysis.verdicts import Verdict

# The trainer's own timers, where our driver was not there to time it.
NATIVE = "native"
PACKAGES = {"swift": "ms-swift"}


def tree_of(
    spec: Mapping[str, Any], facts: Mapping[str, Any], parts: Sequence[Imported], read: SourceRead
) -> tuple[TimerTree, str, list[Verdict]]:
    """The tree of the run's timers and its trainer's version: as given, else as the sources say."""
    run_id, trainer, engine = str(spec["run_id"]), str(spec["trainer"]), str(spec["engine"])
    # First of all: a log of another trainer has no timers that its arm's could be taken for.
    require_of_arm(spec, list(zip(map(str, facts["sources"]), parts, strict=True)))
    verdicts = []
    package = PACKAGES.get(trainer, trainer)
    said = [v for part in parts if (v := part.versions.get(package) or part.versions.get(trainer))]
    version = facts.get("version") or next(iter(said), None)
    if version is None:
        known = ", ".join(dict.fromkeys(t.series for t in declared_trees() if t.trainer == trainer)) or "none"
        raise UserError(
            f"run {run_id}: which release of {trainer} it is of decides how its timers nest, and "
            f"{', '.join(map(str, facts['sources']))} does not say it. Give it as import.version of arm "
            f"{spec.get('arm')} (declared: {known})"
        )
    version = str(version)
    if said and not _same_version(said[0], version):
        text = f"{run_id}: its source says {trainer} {said[0]}, its arm {version}: the arm's counts"
        verdicts.append(Verdict("warning", "version-differs", text))
    mode = str(facts.get("mode") or "")
    if not mode and trainer == "verl":
        config = next((part.config for part in parts if part.config), {})
        mode = mode_of(trainer, version, spec, {"resolved": {"trainer": config}})
    elif not mode:
        ours = any(name.startswith(TIMERS + "step") for record in read.records.values() for name in record.scalars)
        mode = "" if ours and trainer == "trl" else NATIVE
    tree = tree_for(trainer, version, engine, mode)
    other = _better(tree, version, engine, read) if not facts.get("mode") else None
    if other is not None:
        text = (
            f"{run_id}: its timers are those of {other.name}, not of {tree.name}, and are read so; say it in "
            f"import.mode ({other.mode or 'the default'})"
        )
        verdicts.append(Verdict("warning", "mode-by-timers", text))
    return other or tree, version, verdicts


def _same_version(a: str, b: str) -> bool:
    return a == b or re.sub(r"\+.*$", "", a) == re.sub(r"\+.*$", "", b)


def _better(tree: TimerTree, version: str, engine: str, read: SourceRead) -> TimerTree | None:
    """Another loop of the same release that declares every timer, where this one does not."""
    steps = list(read.records.values())[:20]

    def undeclared(one: TimerTree) -> int:
        return sum(len(nested(step.scalars, one).undeclared) for step in steps)

    if not tree.flat or not undeclared(tree):
        return None
    others = [
        t
        for t in declared_trees()
        if t is not tree and t.trainer == tree.trainer and t.matches(version) and engine in t.engines and t.flat
    ]
    fitting = [t for t in others if not t.overlap and not undeclared(t)]
    return fitting[0] if len(fitting) == 1 else None


def root_keys(tree: TimerTree) -> str:
    keys = tree.phases[0].keys or (tree.root,)
    return " or ".join(key if "/" in key else TIMERS + key for key in keys)
