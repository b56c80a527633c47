"""Finds the tree of an imported run's timers: of which release they are, and of which of its loops."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from analysis.imports.formats import WANDB
from analysis.imports.source_check import require_of_arm, require_own_tree
from common.errors import UserError
from common.messages import join_first
from common.verdicts import Verdict
from trainers.logs.record import TIMERS, Imported, SourceRead
from trainers.registry import trainer_named, trainers
from trainers.timers.flat import nest_timers
from trainers.timers.lookup import declared_trees, mode_of, releases, tree_for
from trainers.timers.own import own_tree
from trainers.timers.tree import TimerTree, release_of

# How `import.mode` names the default loop of verl.
SYNCHRONOUS = "sync"
# A loop that times what the synchronous one does, under the same names (verl 0.9.1 trainer_separate_async.py).
UNMARKED = "separate_async"
# How many versions of the weights the oldest tokens of a step lag behind: 0 in a synchronous loop, in every loop of
# trainer.use_v1 logged with each step (verl 0.9.1 trainer/ppo/v1/trainer_base.py, _compute_metrics).
STALENESS = "training/off_policy/trajectory_staleness_worst/max"


def tree_of(
    spec: Mapping[str, Any], facts: Mapping[str, Any], parts: Sequence[Imported], read: SourceRead
) -> tuple[TimerTree, str, list[Verdict]]:
    """The tree of the run's timers and its trainer's version: as given, else as the sources say."""
    run_id, trainer, engine = str(spec["run_id"]), str(spec["trainer"]), str(spec["engine"])
    # First of all: a log of another trainer has no timers that its arm's could be taken for.
    by_name = list(zip(map(str, facts["sources"]), parts, strict=True))
    require_of_arm(spec, by_name)
    require_own_tree(spec, by_name)
    verdicts: list[Verdict] = []
    if any(part.tree is not None for part in parts):
        release = str(facts.get("version") or "")
        own = own_tree(trainer, release, engine, [part.tree for part in parts])
        return own, release, list(_own_verdicts(own, read, run_id))
    said = _versions(trainer, parts)
    version = facts.get("version") or next(iter(said), None)
    if version is None:
        raise _no_version(spec, [facts["sources"]])
    version = str(version)
    if said and release_of(said[0]) != release_of(version):
        text = f"{run_id}: its source says {trainer} {said[0]}, its arm {version}: the arm's counts"
        verdicts.append(Verdict("warning", "version-differs", text))
    tree, more = _of_release(spec, facts, parts, read, version)
    return tree, version, [*verdicts, *more]


def _of_release(
    spec: Mapping[str, Any], facts: Mapping[str, Any], parts: Sequence[Imported], read: SourceRead, version: str
) -> tuple[TimerTree, list[Verdict]]:
    """The declared tree of a release, of the loop that is given, else of that which settings or timers tell."""
    run_id, trainer, engine = str(spec["run_id"]), str(spec["trainer"]), str(spec["engine"])
    mode, config = _mode(facts), next((part.config for part in parts if part.config), {})
    native = trainer_named(trainer).native
    undeclared = native and mode in (None, native) and not _declared(trainer, version)
    if undeclared and all(p.format in _step_alone_formats() for p in parts):
        text = (
            f"{run_id}: the timers of {trainer} {version} are not declared (declared: {', '.join(releases(trainer))}). "
            "Its log holds the step's time alone, which is the same in all of these, and is read so"
        )
        return _step_alone(trainer, version, engine), [Verdict("note", "release-undeclared", text)]
    if mode is not None:
        return tree_for(trainer, version, engine, mode), []
    asked = config or next((part.overrides for part in parts if part.overrides), {})
    mode = mode_of(trainer, version, spec, {"resolved": {"trainer": asked}})
    ours = any(name.startswith(TIMERS + "step") for record in read.records.values() for name in record.scalars)
    if native and not (ours and trainer_named(trainer).driver):
        mode = native
    tree = tree_for(trainer, version, engine, mode)
    of_release = [t for t in declared_trees() if t.trainer == trainer and t.matches(version) and engine in t.engines]
    other = _marked(tree, of_release, read, parts) or _better(tree, of_release, read)
    if other is not None:
        text = (
            f"{run_id}: its timers are those of {other.name}, not of {tree.name}, and are read so; confirm it with "
            f"import.mode: {other.mode or SYNCHRONOUS}"
        )
        return other, [Verdict("warning", "mode-by-timers", text)]
    unmarked = next((t for t in of_release if t.mode == UNMARKED), None)
    if unmarked is not None and not tree.mode and not asked:
        return _by_staleness(tree, unmarked, read, run_id)
    return tree, []


def _declared(trainer: str, version: str) -> bool:
    return any(t.trainer == trainer and t.matches(version) for t in declared_trees())


def _step_alone_formats() -> set[str]:
    """Those that hold no timer but the step's: the others go to wandb."""
    return {form.name for trainer in trainers() for form in trainer.formats if form.step_alone}


def _step_alone(trainer: str, version: str, engine: str) -> TimerTree:
    """The tree of a release that is not declared, of which only the step is timed."""
    native = next(t for t in declared_trees() if t.trainer == trainer and t.mode == trainer_named(trainer).native)
    return TimerTree(trainer, version, (engine,), native.phases[:1], native.source, "step alone")


def _mode(facts: Mapping[str, Any]) -> str | None:
    """The loop that `import.mode` names; None where it names none."""
    given = str(facts.get("mode") or "")
    return ("" if given == SYNCHRONOUS else given) if given else None


def _own_verdicts(tree: TimerTree, read: SourceRead, run_id: str) -> Iterator[Verdict]:
    """Says which steps lack their total, and whether the table names no phase of generation."""
    root = tree.phases[0].label
    without = [step for step, record in read.records.items() if TIMERS + root not in record.scalars]
    if without and len(without) < len(read.records):
        has = "has" if len(without) == 1 else "have"
        text = (
            f"{run_id}: {len(without)} of its {len(read.records)} steps {has} no {root} (step {join_first(without)}): "
            "a step without its total does not count"
        )
        yield Verdict("warning", "timings-missing", text)
    if not any(phase.category == "generation" for phase in tree.phases):
        text = (
            f"{run_id}: its table gives no phase the category generation, so there is no roofline for it, and the "
            "waterfall shows no generation. A column category says it (docs/import.md)"
        )
        yield Verdict("note", "no-generation-phase", text)


def require_declared(
    spec: Mapping[str, Any], looks: Sequence[Imported | None], of_arm: Sequence[Sequence[str]]
) -> None:
    """A `UserError` where it is certain before the sources are read that the run's timers have no tree.

    `looks` are what its sources tell at first sight, None for one that does not tell even its format then; `of_arm`
    are the sources of each run of its arm.
    """
    if any(one is not None and one.tree is not None for one in looks):
        return
    facts, trainer, engine = spec["import"], str(spec["trainer"]), str(spec["engine"])
    mode = _mode(facts)
    version = facts.get("version") or next(iter(_versions(trainer, [one for one in looks if one])), None)
    if version is None:
        # What tells its format then tells its version, or does not at all.
        if all(one is not None for one in looks):
            raise _no_version(spec, of_arm)
        return
    fitting = [t for t in declared_trees() if t.trainer == trainer and t.matches(str(version)) and engine in t.engines]
    native = trainer_named(trainer).native
    if not fitting and native and mode in (None, native) and not _declared(trainer, str(version)):
        # The step's time is read of any release; what is not told yet may hold it alone.
        sources = zip(facts["sources"], looks, strict=True)
        if all(
            (look is None and not s.startswith(WANDB)) or (look and look.format in _step_alone_formats())
            for s, look in sources
        ):
            return
    if not any(mode is None or t.mode == mode for t in fitting):
        tree_for(trainer, str(version), engine, native if mode is None else mode)


def _versions(trainer: str, parts: Sequence[Imported]) -> list[str]:
    """The trainer's version, as each source that has one says it."""
    package = trainer_named(trainer).distribution
    return [v for part in parts if (v := part.versions.get(package) or part.versions.get(trainer))]


def _no_version(spec: Mapping[str, Any], runs: Sequence[Sequence[str]]) -> UserError:
    trainer = spec["trainer"]
    known = ", ".join(releases(str(trainer))) or "none"
    listed = [run[0] if len(run) == 1 else {"source": list(run)} for run in runs]
    return UserError(
        f"which release of {trainer} a run is of decides how its timers nest, and not every source says it. Give it as "
        f"import.version of arm {spec.get('arm')} (declared: {known}):\n"
        f'  import: {{version: "...", runs: {json.dumps(listed, ensure_ascii=False)}}}'
    )


def _marked(
    tree: TimerTree, of_release: Sequence[TimerTree], read: SourceRead, parts: Sequence[Imported]
) -> TimerTree | None:
    """The loop of the same release whose marks the run logged; None for `tree` itself, and where none or two did."""
    names = {name for step in read.records.values() for name in step.scalars}.union(
        *(part.names_left_out for part in parts)
    )
    found = [t for t in of_release if any(fnmatchcase(name, mark) for mark in t.marks for name in names)]
    return found[0] if len(found) == 1 and found[0] is not tree else None


def _better(tree: TimerTree, of_release: Sequence[TimerTree], read: SourceRead) -> TimerTree | None:
    """Another loop of the same release that declares every timer, where this one does not."""
    steps = list(read.records.values())[:20]

    def undeclared(one: TimerTree) -> int:
        return sum(len(nest_timers(step.scalars, one).undeclared) for step in steps)

    if not tree.flat or not undeclared(tree):
        return None
    fitting = [t for t in of_release if t is not tree and t.flat and not t.overlap and not undeclared(t)]
    return fitting[0] if len(fitting) == 1 else None


def _by_staleness(
    tree: TimerTree, unmarked: TimerTree, read: SourceRead, run_id: str
) -> tuple[TimerTree, list[Verdict]]:
    """The synchronous loop, or the one of the same timers that generates meanwhile, by how old its responses are.

    Where they are older than the step's weights only the whole step is timed; where nothing tells, a verdict says so.
    """
    logged = [(step, step.scalars[STALENESS]) for step in read.records.values() if STALENESS in step.scalars]
    stale = next(((step.step, age) for step, age in logged if age > 0.0), None)
    if stale is not None:
        text = (
            f"{run_id}: its responses are older than the weights that they train (step {stale[0]}: {STALENESS} is "
            f"{stale[1]:g}): an asynchronous loop. It is read as {unmarked.mode}; confirm it, or correct it, with "
            f"import.mode: {unmarked.mode} or colocate_async"
        )
        return unmarked, [Verdict("warning", "mode-by-timers", text)]
    if logged:
        return tree, []
    text = (
        f"{run_id}: its sources do not tell which loop of {tree.name} it is of; it is read as the synchronous one. In "
        f"{unmarked.mode} `gen` is waiting, not generation: say which with import.mode: {SYNCHRONOUS}, colocate_async "
        f"or {unmarked.mode}"
    )
    return tree, [Verdict("warning", "mode-unknown", text)]


def root_keys(tree: TimerTree) -> str:
    keys = tree.phases[0].keys or (tree.root,)
    return " or ".join(key if "/" in key else TIMERS + key for key in keys)
