"""Finds what differs between the arms at one point of the sweep: do they train under equal terms, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from analysis.term_rules import FACTS
from analysis.terms import MOST_LISTED, Term, as_shown, behaviour_keys, behaviours_of, fact_terms, table
from common.findings import COMPARED, NONE, UNKNOWN, Finding
from common.messages import join_first
from trainers.cases import Behaviour, Case, differing

_PAGE = "docs/preflight.md#unequal"


def comparison_findings(cases: Sequence[Case]) -> Iterator[Finding]:
    """What differs between arms at one point, engine by engine and setting by setting.

    Runs without settings are compared by their trainers and by what is known of them.
    """
    yield from _trainers(cases)
    known = [case for case in cases if not case.unknown]
    if len(known) > 1:
        terms = [term for term in table(known) if term.verdict != "mixed"]
        named = {term.name.partition(" (")[0] for term in terms}
        for behaviour in (one for one in behaviours_of(known) if one.name in named):
            yield from _behaviour(behaviour, known)
        yield from _settings(terms, known)
        yield from _engine_options(known)
        yield from _torch(known)
        yield from _built_in_tokenizer(known)
    if any(case.imported for case in cases):
        yield from _facts(cases, known)


def groups(cases: Iterable[Case], values: Iterable[str | None]) -> dict[str, list[Case]]:
    """The cases by value; those with an unknown value are left out."""
    found: dict[str, list[Case]] = {}
    for case, value in zip(cases, values, strict=True):
        if value is not None:
            found.setdefault(value, []).append(case)
    return found


def _names(some: Sequence[Case], every: Sequence[Case]) -> str:
    """The arms by name; with its own factors, or its runs, where only some of an arm's cases are included."""
    others = {case.arm for case in every if case not in some}, {case.label for case in every if case not in some}
    names = (
        f"{case.label} ({join_first(case.runs, 2)})"
        if case.label in others[1]
        else case.label
        if case.arm in others[0]
        else case.arm
        for case in some
    )
    return ", ".join(dict.fromkeys(names))


def _by_value(found: Mapping[str, list[Case]], every: Sequence[Case]) -> str:
    """`value in arm, arm; value in arm`."""
    return "; ".join(f"{value} in {_names(some, every)}" for value, some in found.items())


def _arms(cases: Iterable[Case]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(case.arm for case in cases))


def _sides(by_value: Mapping[str, Sequence[Case]]) -> tuple[tuple[str, ...], ...]:
    """The arms of each value, if values differ and at least two arms share one; else empty."""
    sides = tuple(_arms(some) for some in by_value.values())
    return sides if len(sides) > 1 and any(len(side) > 1 for side in sides) else ()


def _behaviour(behaviour: Behaviour, cases: Sequence[Case]) -> Iterator[Finding]:
    known = [case for case in cases if case.on_gpu and case.effect(behaviour.code)]
    by_value = groups(known, [case.behaviour(behaviour.code) for case in known])
    if len(by_value) < 2 or behaviour.no_effect(known):
        return
    # The earliest release among the cases allows the least.
    versions = {case.version for case in known}
    changes = next(texts for version, texts in known[0].trainer.rules.changes.items() if version in versions)
    yield Finding(
        behaviour.level,
        behaviour.code,
        _arms(known),
        f"{behaviour.name}: " + _by_value(by_value, known),
        behaviour.why,
        "; ".join(dict.fromkeys(effect.source for case in known if (effect := case.effect(behaviour.code)))),
        changes[behaviour.code],
        sides=_sides(by_value),
    )


def _trainers(cases: Sequence[Case]) -> Iterator[Finding]:
    by_trainer = groups(cases, [case.trainer.name for case in cases])
    by_version = groups(cases, [" ".join(case.release) if case.version else None for case in cases])
    if len(by_trainer) > 1:
        what = f"the arms have different trainers: {_by_value(by_trainer, cases)}"
        why = (
            "a step does other work in each: losses, sharding and timers differ in detail. This compares whole "
            "systems, not engines"
        )
        change, sides = "one trainer in all arms, to compare engines", _sides(by_trainer)
        yield Finding("unequal", "trainers", _arms(cases), what, why, _PAGE, change, sides=sides)
    elif len(by_version) > 1:
        what = f"the arms have different releases: {_by_value(by_version, cases)}"
        why = "defaults, the update itself and what a step's time includes changed between them"
        change, sides = "stacks of one release in all arms", _sides(by_version)
        yield Finding("unequal", "trainer-versions", _arms(cases), what, why, _PAGE, change, sides=sides)


def _settings(terms: Sequence[Term], cases: Sequence[Case]) -> Iterator[Finding]:
    """Settings that differ by configuration, except those that a behaviour describes."""
    if len({case.release for case in cases}) > 1:
        return
    found = [term for term in terms if term.kind == "setting" and term.verdict == "different" and term.why != COMPARED]
    if not found:
        return
    differences = [f"{term.name} ({_by_value(groups(cases, _written(term)), cases)})" for term in found]
    # Options of the experiment cannot change a configuration that comes from a run's own source.
    fixed = any(case.imported and case.settings.composed for case in cases)
    count = f"{len(found)} setting{'s differ' if len(found) > 1 else ' differs'}"
    values = zip(*(map(as_shown, term.values) for term in found), strict=True)
    yield Finding(
        "unequal",
        "settings",
        _arms(cases),
        f"{count} between arms: {join_first(differences, MOST_LISTED)}",
        "the configuration sets them so. If you do not mean to compare them, they distort the times",
        "the configurations in the runs' sources" if fixed else "the experiment: shared and arms.<arm>.options",
        "runs that share what is not compared" if fixed else "put under shared.<trainer>.options what is not compared",
        sides=_sides(groups(cases, map(repr, values))),
    )


def _written(term: Term) -> list[str]:
    """A setting's values as Python writes them; those that a configuration lacks are unknown."""
    return [UNKNOWN if value == NONE else repr(value) for value in term.values]


def _engine_options(cases: Sequence[Case]) -> Iterator[Finding]:
    """Options that the configuration passes to one engine by its own names, and that no behaviour describes."""
    if len({case.engine.name for case in cases}) < 2:
        return
    described = behaviour_keys(cases)
    found: dict[str, list[Case]] = {}
    for case in cases:
        rules = case.trainer.rules
        start = rules.engine_options.replace("{engine}", case.engine.name)
        if not start or not rules.reads_engine_options(case):  # another finding reports options that are not read
            continue
        for key in sorted(case.settings.given):
            if key.startswith(start) and key not in described and case.settings.get(key) is not None:
                found.setdefault(f"{key.removeprefix(start)}={case.settings.get(key)}", []).append(case)
    if found:
        what = f"options by one engine's own names: {_by_value(found, cases)}"
        why = "their effect is unknown here, and so is whether the other engine has the same under another name"
        change = "remove them, or check that the other engine has their counterpart"
        arms = _arms(case for some in found.values() for case in some)
        yield Finding("unequal", "engine-options", arms, what, why, "the experiment: engine_kwargs", change)


def _torch(cases: Sequence[Case]) -> Iterator[Finding]:
    by_version = groups(cases, [case.pins.packages.get("torch") for case in cases])
    if len(by_version) > 1:
        what = f"the stacks have different torch: {_by_value(by_version, cases)}"
        why = "its kernels, its allocator and its compiler run in training and in both engines"
        source, change = "envs/<stack>/requirements.lock", "stacks that pin the same release"
        yield Finding("unequal", "torch-versions", _arms(cases), what, why, source, change, sides=_sides(by_version))


def _built_in_tokenizer(cases: Sequence[Case]) -> Iterator[Finding]:
    """One arm's transformers writes a built-in model, and all arms read it."""
    sources = [str((case.workload.get("model") or {}).get("source")) for case in cases]
    if not all(source.startswith("builtin:") for source in sources):
        return
    versions = [case.pins.packages.get("transformers") for case in cases]
    by_major = groups(cases, [version and version.partition(".")[0] for version in versions])
    if len(by_major) > 1:
        yield Finding(
            "impossible",
            "built-in-tokenizer",
            _arms(cases),
            f"a built-in model in stacks with different transformers: {_by_value(by_major, cases)}",
            "the baseline's stack writes its tokenizer for all arms: transformers 4 cannot load what 5 has written, "
            "and 5 splits numbers differently from 4",
            "envs/<stack>/requirements.lock; measured with transformers 4.51 and 5.9",
            "workload.model.source: a model of your own, or stacks with one major release of transformers",
        )


def _facts(cases: Sequence[Case], known: Sequence[Case]) -> Iterator[Finding]:
    """A finding for every fact that differs between arms at one point with imported arms."""
    # The finding `settings` compares the settings of one release; do not report its differences twice.
    compared = len(known) == len(cases) and len({case.release for case in cases}) == 1
    reported = set(differing([case.settings for case in cases])) if compared else set()
    for term in fact_terms(cases):
        fact = FACTS[term.kind]
        keys = {case.trainer.key(word) for case in known for word in fact.settings}
        if term.verdict == "different" and not reported & keys:
            texts = [None if value == UNKNOWN else as_shown(value) for value in term.values]
            by_value = groups(cases, texts)
            yield Finding(
                "unequal",
                "import-differs",
                _arms(case for some in by_value.values() for case in some),
                f"{fact.row}: " + "; ".join(f"{value} in {', '.join(_arms(some))}" for value, some in by_value.items()),
                fact.why,
                "the experiment's workload and imports",
                "runs that share it; or, if the import states it wrongly, correct arms.<arm>.import",
            )
