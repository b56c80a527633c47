"""Finds what differs between the arms at one point of the sweep: do they train under equal terms, here or elsewhere."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from analysis.setting_terms import matters, option_term, own_option, stated_terms, table
from analysis.terms import MOST_LISTED, STATED, TENSOR_PARALLEL, Term, as_shown, compared, findings_of
from common.findings import COMPARED, NONE, NOT_GIVEN, UNKNOWN, Finding
from common.messages import join_first
from trainers.cases import Case
from workflow.preflight.texts import finding

_WORDS = {"workload.batch_size": ("prompts", "num_generations"), TENSOR_PARALLEL: ("tensor_parallel",)}


def comparison_findings(cases: Sequence[Case]) -> Iterator[Finding]:
    """What differs between arms at one point, engine by engine and setting by setting.

    Runs without settings are compared by their trainers and by what is stated of them.
    """
    yield from _trainers(cases)
    known = [case for case in cases if not case.unknown]
    terms = [term for term in table(cases) if term.verdict != "mixed"] if len(cases) > 1 else []
    settings = [term for term in terms if term.kind == "setting" and term.verdict == "different"]
    settings = [term for term in settings if term.why != COMPARED and len({case.release for case in cases}) == 1]
    if len(known) > 1:
        yield from _engine_options(known, {term.name for term in terms if term.verdict in ("equal", "equivalent")})
        yield from _built_in_tokenizer(known)
    yield from _settings(settings, cases)
    # Where engines run without a trainer, their options are what is compared.
    of_engines = all(case.trainer.trains for case in cases)
    yield from findings_of(term for term in terms if term.name not in STATED and (of_engines or term.kind != "engine"))
    if any(case.imported for case in cases):
        yield from findings_of(_not_reported(cases, {term.name for term in settings}))


def _of_each(cases: Sequence[Case], values: Sequence[object]) -> Term:
    """What the cases differ in; None is unknown."""
    return compared("", cases, [UNKNOWN if value is None else value for value in values], "")


def _trainers(cases: Sequence[Case]) -> Iterator[Finding]:
    trainer = _of_each(cases, [case.trainer.name for case in cases])
    version = _of_each(cases, [" ".join(case.release) if case.version else None for case in cases])
    arms = tuple(dict.fromkeys(case.arm for case in cases))
    if len(trainer.groups()) > 1:
        yield finding("trainers", *arms, sides=trainer.sides, values=trainer.in_words())
    elif len(version.groups()) > 1:
        yield finding("trainer-versions", *arms, sides=version.sides, values=version.in_words())


def _settings(found: Sequence[Term], cases: Sequence[Case]) -> Iterator[Finding]:
    """Settings of one release that differ by configuration."""
    if not found:
        return
    differences = [f"{term.name} ({term.in_words(_written)})" for term in found]
    # Options of the experiment cannot change a configuration that comes from a run's own source.
    fixed = any(case.imported and (case.settings.composed or case.of_command) for case in cases)
    count = f"{len(found)} setting{'s differ' if len(found) > 1 else ' differs'}"
    all_of_them = [repr(values) for values in zip(*(map(as_shown, term.values) for term in found), strict=True)]
    yield finding(
        "settings",
        *dict.fromkeys(case.arm for case in cases),
        sides=_of_each(cases, all_of_them).sides,
        count=count,
        differences=join_first(differences, MOST_LISTED),
        source="the configurations in the runs' sources" if fixed else "the experiment: shared and arms.<arm>.options",
        change="runs that share what is not compared"
        if fixed
        else "put under shared.<trainer>.options what is not compared",
    )


def _written(value: object) -> str:
    """A setting's value as Python writes it; one that a configuration lacks is unknown."""
    return NOT_GIVEN if value == NOT_GIVEN else UNKNOWN if value == NONE else repr(value)


def _engine_options(cases: Sequence[Case], equal: Container[str]) -> Iterator[Finding]:
    """Options that the experiment gives one engine by its own names, unless they make a term equal."""
    if len({case.engine.name for case in cases}) < 2:
        return
    found: dict[str, list[Case]] = {}
    for case in cases:
        if not case.reads_engine_options:  # another finding reports options that are not read
            continue
        for key in sorted(case.settings.given):
            name, value = own_option(key, case), case.settings.get(key)
            if name and value is not None and matters(key, cases) and option_term(key, case) not in equal:
                found.setdefault(f"{name}={value}", []).append(case)
    if found:
        some = [(option, case) for option, of_option in found.items() for case in of_option]
        term = _of_each([case for _, case in some], [option for option, _ in some])
        yield finding("engine-options", *term.arms, values=term.in_words())


def _built_in_tokenizer(cases: Sequence[Case]) -> Iterator[Finding]:
    """One arm's transformers writes a built-in model, and all arms read it."""
    sources = [str((case.workload.get("model") or {}).get("source")) for case in cases]
    if not all(source.startswith("builtin:") for source in sources):
        return
    versions = [case.pins.packages.get("transformers") for case in cases]
    major = _of_each(cases, [version and version.partition(".")[0] for version in versions])
    if len(major.groups()) > 1:
        yield finding("built-in-tokenizer", *dict.fromkeys(case.arm for case in cases), values=major.in_words())


def _not_reported(cases: Sequence[Case], reported: Container[str]) -> Iterator[Term]:
    """What imports state, without what the finding `settings` says already."""
    for term in stated_terms(cases):
        words = _WORDS.get(term.name, (term.name.removeprefix("workload."),))
        if not any(case.trainer.key(word) in reported for case in cases for word in words):
            yield term
