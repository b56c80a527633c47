"""Compares all arms at one point of the sweep: do they train under equal terms, here or elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from common.findings import UNKNOWN, Finding
from common.messages import join_first
from trainers.cases import Behaviour, Case, differing
from trainers.registry import trainers
from workflow.preflight.import_settings import UnknownSettings

_MOST_LISTED = 6


def comparison_findings(cases: Sequence[Case], unknown: Sequence[Case] = ()) -> Iterator[Finding]:
    """What differs between arms at one point, engine by engine and setting by setting.

    The `unknown` cases are compared by their trainers only.
    """
    yield from _trainers([*cases, *unknown])
    if len(cases) < 2:
        return
    for behaviour in behaviours_of(cases):
        yield from _behaviour(behaviour, cases)
    yield from _settings(cases)
    yield from _engine_options(cases)
    yield from _torch(cases)
    yield from _built_in_tokenizer(cases)


def behaviours_of(cases: Iterable[Case]) -> list[Behaviour]:
    """The engine behaviours that the cases' trainers declare."""
    return list(dict.fromkeys(row for case in cases for row in case.trainer.rules.behaviours))


def behaviour_keys(cases: Sequence[Case]) -> set[str]:
    """The settings whose effect a behaviour describes, where the release of a case says what it is.

    Without, a setting is compared by its value, like any other.
    """
    described = [one for one in behaviours_of(cases) if any(case.effect(one.code) for case in cases)]
    return {key for behaviour in described for key in behaviour.keys}


def groups(cases: Iterable[Case], values: Iterable[str | None]) -> dict[str, list[Case]]:
    """The cases by value; those with an unknown value are left out."""
    found: dict[str, list[Case]] = {}
    for case, value in zip(cases, values, strict=True):
        if value is not None:
            found.setdefault(value, []).append(case)
    return found


def _names(some: Sequence[Case], every: Sequence[Case]) -> str:
    """The arms by name; with its own factors where only some of an arm's cases are included."""
    partial = {case.arm for case in every if case not in some}
    return ", ".join(dict.fromkeys(case.label if case.arm in partial else case.arm for case in some))


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
    yield Finding(
        level=behaviour.level,
        code=behaviour.code,
        arms=_arms(known),
        what=f"{behaviour.name}: " + _by_value(by_value, known),
        why=behaviour.why,
        source="; ".join(dict.fromkeys(effect.source for case in known if (effect := case.effect(behaviour.code)))),
        change=_change(behaviour, known),
        sides=_sides(by_value),
    )


def _change(behaviour: Behaviour, cases: Sequence[Case]) -> str:
    """What to change, by the earliest release among the cases: it allows the least."""
    changes = cases[0].trainer.rules.changes
    versions = {case.version for case in cases}
    return next(texts[behaviour.code] for version, texts in changes.items() if version in versions)


def _trainers(cases: Sequence[Case]) -> Iterator[Finding]:
    by_trainer = groups(cases, [case.trainer.name for case in cases])
    by_version = groups(cases, [" ".join(case.release) if case.version else None for case in cases])
    if len(by_trainer) > 1:
        yield Finding(
            "unequal",
            "trainers",
            _arms(cases),
            f"the arms have different trainers: {_by_value(by_trainer, cases)}",
            "a step does other work in each: losses, sharding and timers differ in detail. This compares whole "
            "systems, not engines",
            "docs/preflight.md#unequal",
            "one trainer in all arms, to compare engines",
            sides=_sides(by_trainer),
        )
    elif len(by_version) > 1:
        yield Finding(
            "unequal",
            "trainer-versions",
            _arms(cases),
            f"the arms have different releases: {_by_value(by_version, cases)}",
            "defaults, the update itself and what a step's time includes changed between them",
            "docs/preflight.md#unequal",
            "stacks of one release in all arms",
            sides=_sides(by_version),
        )


def _settings(cases: Sequence[Case]) -> Iterator[Finding]:
    """Settings that differ by configuration, except those that a behaviour describes."""
    if len({case.release for case in cases}) > 1:
        return
    described = behaviour_keys(cases)
    keys = [
        key
        for key in differing([case.settings for case in cases])
        if key not in described and not names_the_engine(key, cases) and matters(key, cases)
    ]
    if not keys:
        return
    differences = []
    for key in keys:
        values = groups(cases, [repr(case.settings.get(key)) if key in case.settings else UNKNOWN for case in cases])
        differences.append(f"{key} ({_by_value(values, cases)})")
    # Options of the experiment cannot change a configuration that comes from a run's own source.
    fixed = any(case.imported and case.settings.composed for case in cases)
    count = f"{len(keys)} setting{'s differ' if len(keys) > 1 else ' differs'}"
    yield Finding(
        "unequal",
        "settings",
        _arms(cases),
        f"{count} between arms: {join_first(differences, _MOST_LISTED)}",
        "the configuration sets them so. If you do not mean to compare them, they distort the times",
        "the configurations in the runs' sources" if fixed else "the experiment: shared and arms.<arm>.options",
        "runs that share what is not compared" if fixed else "put under shared.<trainer>.options what is not compared",
        sides=_sides(groups(cases, [repr([case.settings.get(key, "none") for key in keys]) for case in cases])),
    )


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
        yield Finding(
            "unequal",
            "engine-options",
            _arms(case for some in found.values() for case in some),
            f"options by one engine's own names: {_by_value(found, cases)}",
            "their effect is unknown here, and so is whether the other engine has the same under another name",
            "the experiment: engine_kwargs",
            "remove them, or check that the other engine has their counterpart",
        )


def _own_options(cases: Iterable[Case]) -> tuple[str, ...]:
    """The prefixes of settings that are an engine's own options."""
    found = (case.trainer.rules.engine_options.replace("{engine}", case.engine.name) for case in cases)
    return tuple(filter(None, dict.fromkeys(found)))


def engines_own(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting is one engine's own option, in a comparison of several engines."""
    return len({case.engine.name for case in cases}) > 1 and key.startswith(_own_options(cases))


def names_the_engine(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting selects the engine, or holds its name."""
    switches = {one for case in cases for one in case.trainer.rules.engine_switches}
    return key in switches or all(case.settings.get(key) == case.engine.name for case in cases)


def matters(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting can change the work; names, places, seeds and another engine's options cannot."""
    if any(key.rpartition(".")[2] in trainer.rules.bookkeeping for trainer in trainers()):
        return False
    if any(key in case.trainer.rules.changes_text for case in cases):
        return True
    # The added dot also matches a section that is empty.
    if f"{key}.".startswith(
        (*_own_options(cases), *(one for case in cases for one in case.trainer.rules.engine_specific))
    ):
        return len({case.engine.name for case in cases}) == 1
    model = {one for case in cases for one in case.trainer.keys.get("model", ())}
    return not key.endswith((".path", "seed", "_dir")) or key in model


def _torch(cases: Sequence[Case]) -> Iterator[Finding]:
    by_version = groups(cases, [case.pins.packages.get("torch") for case in cases])
    if len(by_version) > 1:
        yield Finding(
            "unequal",
            "torch-versions",
            _arms(cases),
            f"the stacks have different torch: {_by_value(by_version, cases)}",
            "its kernels, its allocator and its compiler run in training and in both engines",
            "envs/<stack>/requirements.lock",
            "stacks that pin the same release",
            sides=_sides(by_version),
        )


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


class Fact(NamedTuple):
    """What is known even of an imported run without settings."""

    row: str
    """The ledger's name for it, equal to the workload's rows."""
    why: str
    """Why a difference matters."""
    settings: tuple[str, ...]
    """The trainer's keys that make its value."""


FACTS: Mapping[str, Fact] = {
    "gpu": Fact("workload.gpu", "another GPU has another speed, whatever the engine", ("gpu",)),
    "nodes": Fact("workload.nodes", "other nodes are other machines and another network", ("nodes",)),
    "gpus_per_node": Fact("workload.gpus_per_node", "more GPUs do the same work sooner", ("gpus_per_node",)),
    "batch_size": Fact(
        "workload.batch_size", "a step of more completions is more work", ("prompts", "num_generations")
    ),
    "max_response_length": Fact(
        "workload.max_response_length",
        "where longer responses are allowed, a step waits longer for its longest",
        ("max_response_length",),
    ),
    "model": Fact("workload.model", "another model takes another time for each token", ("model",)),
    "tensor_parallel": Fact(
        "GPUs of one engine (tensor parallel)",
        "how many GPUs share one engine decides how fast a response is written and how many run at once",
        ("tensor_parallel",),
    ),
}


def fact_of(name: str, case: Case) -> object:
    """The value of one of FACTS; None if it is unknown."""
    if isinstance(case, UnknownSettings):
        return case.facts.get(name)
    if name == "tensor_parallel":
        return case.tensor_parallel
    value = case.workload.get(name)
    return value.get("source") if name == "model" and isinstance(value, dict) else value


def fact_findings(cases: Sequence[Case], unknown: Sequence[UnknownSettings]) -> Iterator[Finding]:
    """A finding for every fact that differs between arms at one point with imported arms."""
    runs = [*cases, *unknown]
    if not any(case.imported for case in runs):
        return
    # The finding `settings` compares the settings of one release; do not report its differences twice.
    compared = not unknown and len({case.release for case in cases}) == 1
    reported = set(differing([case.settings for case in cases])) if compared else set()
    for name, fact in FACTS.items():
        values = [fact_of(name, case) for case in runs]
        texts = [one if one is None or isinstance(one, str) else json.dumps(one, default=str) for one in values]
        by_value = {text: _arms(some) for text, some in groups(runs, texts).items()}
        if len(by_value) < 2 or reported & {case.trainer.key(word) for case in cases for word in fact.settings}:
            continue
        yield Finding(
            "unequal",
            "import-differs",
            tuple(dict.fromkeys(arm for arms in by_value.values() for arm in arms)),
            f"{fact.row}: " + "; ".join(f"{value} in {', '.join(arms)}" for value, arms in by_value.items()),
            fact.why,
            "the experiment's workload and imports",
            "runs that share it; or, if the import states it wrongly, correct arms.<arm>.import",
        )
