"""Which release's timers does an imported run have, and in which of its loops?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.errors import UserError
from analysis.imported.claims import require_of_arm
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
    said = _versions(trainer, parts)
    version = facts.get("version") or next(iter(said), None)
    if version is None:
        raise _no_version(spec, [facts["sources"]])
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


def require_declared(
    spec: Mapping[str, Any], looks: Sequence[Imported | None], of_arm: Sequence[Sequence[str]]
) -> None:
    """A `UserError` where it is certain before the sources are read that the run's timers have no tree.

    `looks` are what its sources tell at first sight, None for one that does not tell even its format then; `of_arm`
    are the sources of each run of its arm.
    """
    facts, trainer, engine = spec["import"], str(spec["trainer"]), str(spec["engine"])
    mode = str(facts.get("mode") or "")
    version = facts.get("version") or next(iter(_versions(trainer, [one for one in looks if one])), None)
    if version is None:
        # What tells its format then tells its version, or does not at all.
        if all(one is not None for one in looks):
            raise _no_version(spec, of_arm)
        return
    fitting = [t for t in declared_trees() if t.trainer == trainer and t.matches(str(version)) and engine in t.engines]
    if not any(not mode or t.mode == mode for t in fitting):
        tree_for(trainer, str(version), engine, mode or ("" if trainer == "verl" else NATIVE))


def _versions(trainer: str, parts: Sequence[Imported]) -> list[str]:
    """The trainer's version, as each source that has one says it."""
    package = PACKAGES.get(trainer, trainer)
    return [v for part in parts if (v := part.versions.get(package) or part.versions.get(trainer))]


def _no_version(spec: Mapping[str, Any], runs: Sequence[Sequence[str]]) -> UserError:
    trainer = spec["trainer"]
    series = {t.series for t in declared_trees() if t.trainer == trainer}
    known = ", ".join(sorted(series, key=lambda one: [int(part) for part in one.split(".")])) or "none"
    listed = [run[0] if len(run) == 1 else {"source": list(run)} for run in runs]
    return UserError(
        f"which release of {trainer} a run is of decides how its timers nest, and not every source says it. Give it as "
        f"import.version of arm {spec.get('arm')} (declared: {known}):\n"
        f'  import: {{version: "...", runs: {json.dumps(listed, ensure_ascii=False)}}}'
    )


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
