"""Chooses the timer tree of an imported run, by its trainer's release and by the training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from analysis.imports.source_check import require_of_arm, require_own_tree
from analysis.imports.tree_by_data import tree_by_data
from common.messages import join_first
from common.verdicts import Verdict
from trainers.logs.record import TIMERS, Imported, SourceRead
from trainers.registry import declared_trees, mode_of, releases, releases_near, trainer_named, tree_for
from trainers.timers.flat import nest_timers
from trainers.timers.own import own_tree
from trainers.timers.tree import TimerTree, release_of

# The name of verl's default loop in `import.mode`.
SYNCHRONOUS = "sync"
# A loop with the same timers as the synchronous one (verl 0.9.1 trainer_separate_async.py).
UNMARKED = "separate_async"
# The lag, in versions of the weights, of a step's oldest tokens: 0 in a synchronous loop. Every loop of trainer.use_v1
# logs it with each step (verl 0.9.1 trainer/ppo/v1/trainer_base.py, _compute_metrics).
STALENESS = "training/off_policy/trajectory_staleness_worst/max"
# The first steps of every loop have responses of the newest weights.
LEAST_FRESH_STEPS = 3


def tree_of(
    spec: Mapping[str, Any], facts: Mapping[str, Any], parts: Sequence[Imported], read: SourceRead
) -> tuple[TimerTree, str, list[Verdict]]:
    """The tree of the run's timers and its trainer's version: as given, otherwise as the sources say."""
    run_id, trainer, engine = str(spec["run_id"]), str(spec["trainer"]), str(spec["engine"])
    # Checked first: a log of another trainer has none of the arm's timers.
    by_name = list(zip(map(str, facts["sources"]), parts, strict=True))
    require_of_arm(spec, by_name)
    require_own_tree(spec, by_name)
    if any(part.tree is not None for part in parts):
        release = str(facts.get("version") or "")
        own = own_tree(trainer, release, engine, [part.tree for part in parts])
        return own, release, list(_own_tree_verdicts(own, read, run_id))
    found = _versions(trainer, parts)
    version = str(facts.get("version") or next(iter(found), ""))
    verdicts: list[Verdict] = []
    if found and release_of(found[0]) != release_of(version):
        text = f"{run_id}: its source says {trainer} {found[0]}, its arm {version}: the arm's version counts"
        verdicts.append(Verdict("warning", "version-differs", text))
    if version and _is_declared(trainer, version):
        tree, more = _declared_tree(spec, facts, parts, read, version)
    else:
        tree, more = _tree_by_data(spec, facts, parts, read, version)
    return tree, version, [*verdicts, *more]


def _is_declared(trainer: str, version: str) -> bool:
    return any(tree.matches(version) for tree in declared_trees() if tree.trainer == trainer)


def _tree_by_data(
    spec: Mapping[str, Any], facts: Mapping[str, Any], parts: Sequence[Imported], read: SourceRead, version: str
) -> tuple[TimerTree, list[Verdict]]:
    """The tree of a run whose release is not in its sources (version ""), or not declared, by its own timers."""
    trainer = str(spec["trainer"])
    why = f"its log does not name its release of {trainer}"
    if version:
        why = f"the timers of {trainer} {version} are not declared (declared: {', '.join(releases(trainer))})"
    order = releases_near(trainer, version)
    tree_of_release = partial(_declared_tree, spec, facts, parts, read)
    return tree_by_data(trainer, str(spec["run_id"]), order, tree_of_release, read, why)


def _declared_tree(
    spec: Mapping[str, Any], facts: Mapping[str, Any], parts: Sequence[Imported], read: SourceRead, version: str
) -> tuple[TimerTree, list[Verdict]]:
    """The declared tree of a release and of the given loop, otherwise of the loop that settings or timers show."""
    run_id, trainer, engine = str(spec["run_id"]), str(spec["trainer"]), str(spec["engine"])
    mode, native = _mode(facts), trainer_named(trainer).logs.native
    of_release = [t for t in declared_trees() if t.trainer == trainer and t.matches(version)]
    if mode is not None:
        return tree_for(trainer, version, engine, mode), []
    settings = next((p.config for p in parts if p.config), {}) or next((p.overrides for p in parts if p.overrides), {})
    mode = mode_of(trainer, version, spec, {"resolved": {"trainer": settings}})
    our_timers = any(name.startswith(TIMERS + "step") for record in read.records.values() for name in record.scalars)
    if native and not (our_timers and trainer_named(trainer).driver):
        mode = native
    tree = tree_for(trainer, version, engine, mode)
    candidates = [t for t in of_release if t.has(engine)]
    other = _marked(tree, candidates, read, parts) or _fitting_better(tree, candidates, read)
    if other is not None:
        text = (
            f"{run_id}: its timers are those of {other.name}, not of {tree.name}, and are read so; confirm it with "
            f"import.mode: {other.mode or SYNCHRONOUS}"
        )
        return other, [Verdict("warning", "mode-by-timers", text)]
    unmarked = next((t for t in candidates if t.mode == UNMARKED), None)
    if unmarked is not None and not tree.mode and not settings:
        return _by_staleness(tree, unmarked, read, run_id)
    return tree, []


def _mode(facts: Mapping[str, Any]) -> str | None:
    """The loop of `import.mode`; None where it is not given."""
    given = str(facts.get("mode") or "")
    return ("" if given == SYNCHRONOUS else given) if given else None


def _own_tree_verdicts(tree: TimerTree, read: SourceRead, run_id: str) -> Iterator[Verdict]:
    """Reports the steps without their total, and a table without a phase of generation."""
    root = tree.phases[0].label
    without = [step for step, record in read.records.items() if TIMERS + root not in record.scalars]
    if without and len(without) < len(read.records):
        have = "has" if len(without) == 1 else "have"
        text = (
            f"{run_id}: {len(without)} of its {len(read.records)} steps {have} no {root} (step {join_first(without)}): "
            "a step without its total does not count"
        )
        yield Verdict("warning", "timings-missing", text)
    if not any(phase.category == "generation" for phase in tree.phases):
        text = (
            f"{run_id}: its table gives no phase the category generation, so it has no roofline, and the figure of "
            "phases shows no generation. Add a column category (docs/import.md)"
        )
        yield Verdict("note", "no-generation-phase", text)


def require_declared(spec: Mapping[str, Any], inspected: Sequence[Imported | None]) -> None:
    """`UserError` where it is certain, before the sources are read, that a declared release has no tree for the run.

    `inspected` is the result of `inspect_source` for each source.
    """
    if any(part is not None and part.tree is not None for part in inspected):
        return
    facts, trainer, engine = spec["import"], str(spec["trainer"]), str(spec["engine"])
    version = facts.get("version") or next(iter(_versions(trainer, [part for part in inspected if part])), None)
    if version is None or not _is_declared(trainer, str(version)):
        return  # the run's timers decide
    mode, native = _mode(facts), trainer_named(trainer).logs.native
    fitting = [t for t in declared_trees() if t.trainer == trainer and t.matches(str(version)) and t.has(engine)]
    if not any(mode is None or t.mode == mode for t in fitting):
        tree_for(trainer, str(version), engine, native if mode is None else mode)


def _versions(trainer: str, parts: Sequence[Imported]) -> list[str]:
    package = trainer_named(trainer).distribution
    return [v for part in parts if (v := part.versions.get(package) or part.versions.get(trainer))]


def _marked(
    tree: TimerTree, candidates: Sequence[TimerTree], read: SourceRead, parts: Sequence[Imported]
) -> TimerTree | None:
    """The one other loop of the same release whose marks the run logged; None where none or two did."""
    names = {name for step in read.records.values() for name in step.scalars}.union(
        *(part.names_left_out for part in parts)
    )
    found = [t for t in candidates if any(fnmatchcase(name, mark) for mark in t.marks for name in names)]
    if len(found) != 1 or found[0] is tree or (tree.overlap and found[0].overlap):
        # The configuration counts among the asynchronous loops, of which only the whole step is timed.
        return None
    return found[0]


def _fitting_better(tree: TimerTree, candidates: Sequence[TimerTree], read: SourceRead) -> TimerTree | None:
    """The one other loop of the same release that declares every timer, where this one does not."""
    steps = list(read.records.values())[:20]

    def has_undeclared(one: TimerTree) -> bool:
        return any(nest_timers(step.scalars, one).undeclared for step in steps)

    if not tree.flat or not has_undeclared(tree):
        return None
    fitting = [t for t in candidates if t is not tree and t.flat and not t.overlap and not has_undeclared(t)]
    return fitting[0] if len(fitting) == 1 else None


def _by_staleness(
    tree: TimerTree, unmarked: TimerTree, read: SourceRead, run_id: str
) -> tuple[TimerTree, list[Verdict]]:
    """The synchronous loop, or the asynchronous one with the same timers, by the age of its responses.

    In the asynchronous loop only the whole step is timed. A warning says where no age is logged.
    """
    ages = {record.step: record.scalars[STALENESS] for record in read.records.values() if STALENESS in record.scalars}
    stale = next((step for step, age in ages.items() if age > 0.0), None)
    if stale is not None:
        text = (
            f"{run_id}: its responses are older than the weights that they train (step {stale}: {STALENESS} is "
            f"{ages[stale]:g}): an asynchronous loop. It is read as {unmarked.mode}; confirm it, or correct it, with "
            f"import.mode: {unmarked.mode} or colocate_async"
        )
        return unmarked, [Verdict("warning", "mode-by-timers", text)]
    if len(ages) >= LEAST_FRESH_STEPS:
        return tree, []
    text = (
        f"{run_id}: its sources do not show which loop of {tree.name} it ran; it is read as the synchronous one. In "
        f"{unmarked.mode} `gen` is waiting, not generation: set import.mode to {SYNCHRONOUS}, colocate_async or "
        f"{unmarked.mode}"
    )
    return tree, [Verdict("warning", "mode-unknown", text)]


def root_keys(tree: TimerTree) -> str:
    keys = tree.phases[0].keys or (tree.root,)
    return " or ".join(key if "/" in key else TIMERS + key for key in keys)
