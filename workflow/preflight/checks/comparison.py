"""Compares all arms at one point of the sweep: whether they meet on equal terms, trained here or elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from common.findings import Finding
from common.messages import join_first
from trainers.cases import Case, differing
from trainers.registry import trainers
from trainers.rows import Behaviour
from trainers.terms import TERMS, no_effect, terms_of
from workflow.preflight.import_settings import UnknownSettings

_MOST_LISTED = 6


def comparison_findings(cases: Sequence[Case], unknown: Sequence[Case] = ()) -> Iterator[Finding]:
    """What differs between arms at one point, engine by engine and setting by setting.

    Of the `unknown` no more is known than their trainers.
    """
    yield from _trainers([*cases, *unknown])
    if len(cases) < 2:
        return
    for behaviour in behaviours_of(cases):
        yield from _behaviour(behaviour, cases)
    yield from _settings(cases)
    yield from _terms(cases)
    yield from _engine_options(cases)
    yield from _packages(cases)
    yield from _built_in_tokenizer(cases)


def behaviours_of(cases: Iterable[Case]) -> list[Behaviour]:
    """What the cases' trainers tell of their engines, a row each."""
    return list(dict.fromkeys(row for case in cases for row in case.trainer.behaviours))


def groups(cases: Iterable[Case], told: Iterable[str | None]) -> dict[str, list[Case]]:
    """The cases by what is told of them; those of which nothing is known are left out."""
    found: dict[str, list[Case]] = {}
    for case, value in zip(cases, told, strict=True):
        if value is not None:
            found.setdefault(value, []).append(case)
    return found


def _names(some: Sequence[Case], of: Sequence[Case]) -> str:
    """The arms by name; with its own factors where an arm is not there in all of them."""
    there = {id(case) for case in some}
    whole = {case.arm for case in of} - {case.arm for case in of if id(case) not in there}
    return ", ".join(dict.fromkeys(case.arm if case.arm in whole else case.label for case in some))


def _by_value(found: Mapping[str, list[Case]], of: Sequence[Case]) -> str:
    """`value in arm, arm; value in arm`."""
    return "; ".join(f"{value} in {_names(some, of)}" for value, some in found.items())


def _arms(cases: Iterable[Case]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(case.arm for case in cases))


def _sides(by_value: Mapping[str, Sequence[Case]]) -> tuple[tuple[str, ...], ...]:
    """The arms of each value, where two arms or more share one and not all do; nothing where each is on its own."""
    sides = tuple(_arms(some) for some in by_value.values())
    return sides if len(sides) > 1 and any(len(side) > 1 for side in sides) else ()


def _behaviour(behaviour: Behaviour, cases: Sequence[Case]) -> Iterator[Finding]:
    known = [case for case in cases if case.on_gpu and case.place in behaviour.effects]
    by_value = groups(known, [behaviour.describe(case) for case in known])
    if behaviour.level is None or len(by_value) < 2 or behaviour.no_effect(known):
        return
    sources = dict.fromkeys(behaviour.effects[case.place].source for case in known)
    yield Finding(
        level=behaviour.level,
        code=behaviour.code,
        arms=_arms(known),
        what=f"{behaviour.name}: " + _by_value(by_value, known),
        why=behaviour.why,
        source="; ".join(sources),
        change=behaviour.advice(known),
        sides=_sides(by_value),
    )


def _trainers(cases: Sequence[Case]) -> Iterator[Finding]:
    by_trainer = groups(cases, [case.trainer.name for case in cases])
    if len(by_trainer) > 1:
        yield Finding(
            "unequal",
            "trainers",
            _arms(cases),
            f"the arms have different trainers: {_by_value(by_trainer, cases)}",
            "a step is not the same work in both: other losses' details, other sharding, other timers. Such a "
            "comparison is one of whole systems, not of engines",
            "docs/preflight.md#unequal",
            "one trainer in all arms, to compare engines",
            sides=_sides(by_trainer),
        )
        return
    by_version = groups(cases, [" ".join(case.release) if case.version else None for case in cases])
    if len(by_version) > 1:
        yield Finding(
            "unequal",
            "trainer-versions",
            _arms(cases),
            f"the arms have different releases: {_by_value(by_version, cases)}",
            "defaults, the update itself and what is inside a step's time changed in between",
            "docs/preflight.md#unequal",
            "stacks of one release in all arms",
            sides=_sides(by_version),
        )


def _terms(cases: Sequence[Case]) -> Iterator[Finding]:
    """Where trainers' settings are known to come to different terms: what a setting could end, and the rest."""
    terms = terms_of(cases)
    told: dict[bool, list[tuple[str, str, list[str]]]] = {True: [], False: []}
    apart: dict[bool, list[list[str | None]]] = {True: [], False: []}
    for name, said in terms.items():
        texts = [None if one.value is None else str(one.value) for one in said]
        by_value = groups(cases, texts)
        if len(by_value) > 1 and not no_effect(name, terms, cases):
            keys = list(dict.fromkeys(key for one in said for key in one.keys))
            told[bool(keys)].append((name, f"{name} ({_by_value(by_value, cases)})", keys))
            apart[bool(keys)].append(texts)
    for settable, code in ((True, "trainer-terms"), (False, "trainer-ways")):
        if found := told[settable]:
            say_it = ", ".join(dict.fromkeys(key for *_, some in found for key in some))
            yield Finding(
                "unequal",
                code,
                _arms(cases),
                f"the trainers differ in {'; '.join(text for _, text, _ in found)}",
                "; ".join(dict.fromkeys(TERMS[name] for name, *_ in found)),
                "trainers/terms.py, and the trainers' own sources as it names them",
                f"the settings that say it: {say_it}" if settable else "nothing; or one trainer in all arms",
                sides=_sides(groups(cases, map(repr, zip(*apart[settable], strict=True)))),
            )


def _settings(cases: Sequence[Case]) -> Iterator[Finding]:
    """Settings that the configuration itself makes differ, but for those that an engine's behaviour speaks of."""
    if len({case.release for case in cases}) > 1:
        return
    spoken = {key for behaviour in behaviours_of(cases) for key in behaviour.keys}
    keys = [
        key
        for key in differing([case.settings for case in cases])
        if key not in spoken and not names_the_engine(key, cases) and matters(key, cases)
    ]
    if not keys:
        return
    told = []
    for key in keys:
        values = groups(cases, [repr(case.settings.get(key)) if key in case.settings else "unknown" for case in cases])
        told.append(f"{key} ({_by_value(values, cases)})")
    # What a run's own source holds, no option of the experiment can change any more.
    held = any(case.imported and case.settings.composed for case in cases)
    yield Finding(
        "unequal",
        "settings",
        _arms(cases),
        f"{len(keys)} setting{'s differ' if len(keys) > 1 else ' differs'} between arms: "
        f"{join_first(told, _MOST_LISTED)}",
        "the configuration says so. If this is what you compare, good; if not, it is in the times",
        "the configurations that the runs' sources hold" if held else "the experiment: shared and arms.<arm>.options",
        "runs that share what is not compared" if held else "put under shared.<trainer>.options what is not compared",
        sides=_sides(groups(cases, [repr([case.settings.get(key, "none") for key in keys]) for case in cases])),
    )


def _engine_options(cases: Sequence[Case]) -> Iterator[Finding]:
    """What the configuration gives one engine in its own words, which no row of behaviours speaks of."""
    if len({case.engine.name for case in cases}) < 2:
        return
    spoken = {key for behaviour in behaviours_of(cases) for key in behaviour.keys}
    told: dict[str, list[Case]] = {}
    for case in cases:
        start = case.trainer.engine_options.replace("{engine}", case.engine.name)
        if not start or not case.trainer.reads_engine_options(case):  # another finding says that it does not
            continue
        for key in sorted(case.settings.given):
            if key.startswith(start) and key not in spoken and case.settings.get(key) is not None:
                told.setdefault(f"{key.removeprefix(start)}={case.settings.get(key)}", []).append(case)
    if told:
        yield Finding(
            "unequal",
            "engine-options",
            _arms(case for some in told.values() for case in some),
            f"options in one engine's own words: {_by_value(told, cases)}",
            "it is not known here what they do, nor whether the other engine is told the same in other words",
            "the experiment: engine_kwargs",
            "take them out, or see that the other engine has their counterpart",
        )


def _own_options(cases: Iterable[Case]) -> tuple[str, ...]:
    """How settings begin that are options in one engine's own words."""
    found = (case.trainer.engine_options.replace("{engine}", case.engine.name) for case in cases)
    return tuple(filter(None, dict.fromkeys(found)))


def engines_own(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting is an option in one engine's own words, where arms of another are beside it."""
    return len({case.engine.name for case in cases}) > 1 and key.startswith(_own_options(cases))


def names_the_engine(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting is the engine's own name: the switch that chooses it, or what a trainer takes from it."""
    switches = {one for case in cases for one in case.trainer.engine_switches}
    return key in switches or all(case.settings.get(key) == case.engine.name for case in cases)


def matters(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting of the configuration can bear on the work: no name, place or seed, no other engine's words."""
    if any(key.rpartition(".")[2] in trainer.bookkeeping for trainer in trainers()):
        return False
    if any(key in case.trainer.changes_text for case in cases):
        return True
    # With a dot at its end an empty section is one, too.
    if f"{key}.".startswith((*_own_options(cases), *(one for case in cases for one in case.trainer.engine_specific))):
        return len({case.engine.name for case in cases}) == 1
    model = {one for case in cases for one in case.trainer.keys.get("model", ())}
    return not key.endswith((".path", "seed", "_dir")) or key in model


# Package -> why a difference between stacks is one of the arms' terms.
_PACKAGES = {"torch": "its kernels, its allocator and its compiler run in training and in both engines"}


def _packages(cases: Sequence[Case]) -> Iterator[Finding]:
    for package, why in _PACKAGES.items():
        by_version = groups(cases, [case.pins.packages.get(package) for case in cases])
        if len(by_version) > 1:
            yield Finding(
                "unequal",
                f"{package}-versions",
                _arms(cases),
                f"the stacks have different {package}: {_by_value(by_version, cases)}",
                why,
                "envs/<stack>/requirements.lock",
                "stacks that pin the same release",
                sides=_sides(by_version),
            )


def _built_in_tokenizer(cases: Sequence[Case]) -> Iterator[Finding]:
    """A built-in model is written by one arm's transformers and read by all arms'."""
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
            "and 5 tokenizes numbers otherwise than 4 did",
            "envs/<stack>/requirements.lock; seen with transformers 4.51 and 5.9",
            "workload.model.source: a model of your own, or stacks with one major release of transformers",
        )


# What is said of an imported run, and the ledger's name for it, as the workload's rows have it.
FACTS: Mapping[str, str] = {
    **{name: f"workload.{name}" for name in ("gpu", "nodes", "gpus_per_node", "batch_size", "max_response_length")},
    "model": "workload.model",
    "tensor_parallel": "GPUs of one engine (tensor parallel)",
}
# A fact whose value several settings make.
_MADE_OF: Mapping[str, tuple[str, ...]] = {"batch_size": ("prompts", "num_generations")}
_WHY: Mapping[str, str] = {
    "gpu": "another GPU has another speed, whatever the engine",
    "nodes": "other nodes are other machines and another network",
    "gpus_per_node": "more GPUs do the same work sooner",
    "batch_size": "a step of more completions is more work",
    "max_response_length": "where longer responses are allowed, a step waits longer for its longest",
    "model": "another model takes another time for each token",
    "tensor_parallel": "how many GPUs share one engine decides how fast a response is written and how many run at once",
}


def fact_of(name: str, one: Case) -> object:
    """What is known of a run under one of FACTS; None where nobody says it."""
    if isinstance(one, UnknownSettings):
        return one.words.get(name)
    if name == "tensor_parallel":
        return one.tensor_parallel
    value = one.workload.get(name)
    return value.get("source") if name == "model" and isinstance(value, dict) else value


def terms_findings(cases: Sequence[Case], unknown: Sequence[UnknownSettings]) -> Iterator[Finding]:
    """A finding for every fact that differs between arms at one point, some of which are imported."""
    runs = [*cases, *unknown]
    if not unknown and not any(case.imported for case in cases):
        return
    # With settings of every arm the finding on these has them; of whole systems it speaks of no setting.
    told = not unknown and len({case.release for case in cases}) == 1
    spoken = set(differing([case.settings for case in cases])) if told else set()
    for name, setting in FACTS.items():
        facts = [fact_of(name, one) for one in runs]
        texts = [one if one is None or isinstance(one, str) else json.dumps(one, default=str) for one in facts]
        by_value = {text: _arms(some) for text, some in groups(runs, texts).items()}
        # Where it differs because these do, another finding says so already.
        made_of = {case.trainer.key(word) for case in cases for word in _MADE_OF.get(name, (name,))}
        if len(by_value) < 2 or spoken & made_of:
            continue
        yield Finding(
            "unequal",
            "import-differs",
            tuple(dict.fromkeys(arm for arms in by_value.values() for arm in arms)),
            f"{setting}: " + "; ".join(f"{value} in {', '.join(arms)}" for value, arms in by_value.items()),
            _WHY[name],
            "the experiment's workload and imports",
            "runs that share it; or, if what is said of them is wrong, arms.<arm>.import",
        )
