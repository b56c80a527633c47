"""Adds what finished runs report to the table of terms: settings, engine, machine, inputs, stack and our own commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.engine_terms import EnginePlace, engine_terms
from analysis.planned import PlanRead
from analysis.runs import Run
from analysis.setting_terms import is_bookkeeping
from analysis.terms import HARDWARE, INPUTS, NO_SPEED, Term, as_shown, compared, equivalent, findings_of, mixed_findings
from common.dotted import as_mapping, flatten, positive_int
from common.files import read_json
from common.findings import COMPARED, EQUALITIES, UNKNOWN, LedgerRow, Preflight, merge_findings
from common.verdicts import Verdict
from engines import engine_named
from engines.printed import printed_in
from trainers.cases import label_and_point
from trainers.registry import trainer_named

_SOURCE = "the runs' own reports"
_ENGINE, _VARIABLE, _PACKAGE = "resolved.engine.", "resolved.environment.", "package "
RELEASE = "engine's release"
STACK, COMMIT, CHANGED = "stack", "commit of rolloutbench", " with uncommitted changes"
MEASUREMENT = "measurement"


@dataclass(frozen=True)
class RunPlace:
    """Where a run stands in the comparison, and what it reports of itself."""

    arm: str
    label: str
    point: str
    runs: tuple[str, ...]
    settings: Mapping[str, object]
    facts: Mapping[str, object]


def with_reported(preflight: Preflight | None, runs: Sequence[Run]) -> Preflight | None:
    """The preflight with the terms that runs report; those in which arms are not equal stay first."""
    if preflight is None:
        return None
    places = [_place(run) for run in runs]
    of_engines = [*_engines(runs, places)]
    terms = [*of_engines, *_facts(places)]
    terms += () if any(run.imported for run in runs) else _settings(preflight, places)
    reported = {term.name: term.row for term in terms}
    rows = [*(row for row in preflight.ledger if row.setting not in reported), *reported.values()]
    ledger = sorted(rows, key=lambda row: EQUALITIES.index(row.verdict))
    # Between arms of one engine the settings say it already; of engines without a trainer it is what is compared.
    said = any(one.code == "settings" for one in preflight.findings) and len({run.spec["engine"] for run in runs}) == 1
    said = said or not all(trainer_named(str(run.spec.get("trainer"))).trains for run in runs)
    unequal = findings_of(term for term in terms if not (said and term in of_engines))
    findings = merge_findings([*preflight.findings, *unequal, *mixed_findings(terms)])
    return replace(preflight, ledger=tuple(ledger), findings=tuple(findings))


def _place(run: Run) -> RunPlace:
    label, point = label_and_point({"arm": run.arm, "factors": run.factors})
    resolved = as_mapping(run.done.get("resolved"))
    versions = as_mapping(run.done.get("versions")).items()
    settings = flatten(as_mapping(resolved.get("trainer"))) | {_PACKAGE + name: value for name, value in versions}
    facts = {f"hardware.{name}": run.hardware.get(name) for name in HARDWARE}
    if isinstance(memory := run.hardware.get("memory_gib"), int | float):
        # Nodes of one kind differ by a few MiB.
        facts["hardware.memory_gib"] = float(f"{memory:.2g}")
    inputs = as_mapping(run.done.get("inputs"))
    facts |= {name: (inputs.get(key) or "")[:12] or None for key, name in INPUTS.items()}
    if not run.imported:
        engine = engine_named(str(run.spec.get("engine")))
        described = {*engine.measured, *(name for names in engine.options.values() for name in names)}
        own = ((name, value) for name, value in engine_settings(run).items() if name.split(".")[0] not in described)
        facts |= {_ENGINE + name: value for name, value in own}
        facts |= {_VARIABLE + name: value for name, value in as_mapping(resolved.get("environment")).items()}
        facts[STACK] = " ".join(filter(None, [*stack_of(run), as_shown(dict(origin_of(run)) or "")]))
        facts[MEASUREMENT] = run.done.get("measurement", 1)
        facts[COMMIT] = " and ".join(dict.fromkeys(_commits(run))) or None
    facts[RELEASE] = _release(run)
    names = {run.run_id, str(run.spec.get("fingerprint"))[:12]}
    settings, facts = ({key: _unnamed(value, names) for key, value in some.items()} for some in (settings, facts))
    return RunPlace(run.arm, label, point, (run.run_id,), settings, facts)


def _commits(run: Run) -> Iterator[str]:
    """The commits of our code in a run's attempts: it may have changed between two of them."""
    files = [file for number in run.attempts for file in run.attempt_files("attempt.json", number)]
    for state in (*(read_json(file) for file in files), run.done):
        git = as_mapping(as_mapping(state).get("git"))
        if git.get("commit"):
            yield git["commit"][:12] + CHANGED * bool(git.get("dirty"))


def _release(run: Run) -> str | None:
    engine, versions = engine_named(str(run.spec.get("engine"))), as_mapping(run.done.get("versions"))
    return next((f"{engine.label} {versions[name]}" for name in engine.packages if versions.get(name)), None)


def engine_settings(run: Run) -> dict[str, Any]:
    """What a run's engine reports of itself by its own names, flat, and what its log prints of it."""
    if run.imported:
        return flatten(as_mapping(run.done.get("engine")))
    printed = printed_in(run.attempt_files("log"), engine_named(str(run.spec.get("engine"))).printed)
    return flatten(as_mapping(as_mapping(run.done.get("resolved")).get("engine"))) | printed


def _engines(runs: Sequence[Run], places: Sequence[RunPlace]) -> Iterator[Term]:
    """What the engines report that they run with, where one of them reports anything."""
    found = [_engine_place(run, place) for run, place in zip(runs, places, strict=True)]
    if any(one.terms for one in found):
        yield from engine_terms(found, "what the engines report at their start")


def _engine_place(run: Run, place: RunPlace) -> EnginePlace:
    """A run's engine; a step's sequences are known for engines that share the job's GPUs equally."""
    engine, settings = engine_named(str(run.spec.get("engine"))), engine_settings(run)
    workload = as_mapping(run.spec.get("workload"))
    size = {name: value for name, value in workload.items() if isinstance(value, int)}
    gpus = (size.get("nodes") or 1) * (size.get("gpus_per_node") or 1)
    parallel = positive_int(settings.get("tensor_parallel_size")) or 1
    alone = settings.get("mode") != "server" and gpus % parallel == 0 and not run.tree.overlap
    sequences = -(-size["batch_size"] * parallel // gpus) if alone and "batch_size" in size else None
    prompt, response = size.get("max_prompt_length"), size.get("max_response_length")
    longest = prompt + response if prompt and response else None
    return EnginePlace(place, engine, engine.reported(settings) if settings else {}, sequences, prompt, longest)


def _unnamed(value: object, own: set[str]) -> object:
    """A path without the run's own id and fingerprint, in which any two runs differ."""
    if isinstance(value, str) and "/" in value:
        for name in own:
            value = str(value).replace(name, "<run>")
    return value


def _facts(places: Sequence[RunPlace]) -> Iterator[Term]:
    """What runs report; a variable, a stack and our commit only where several arms do, or runs of one arm differ."""
    several = len({place.arm for place in places}) > 1
    engines = {place.facts.get(f"{_ENGINE}name") for place in places}
    for name in dict.fromkeys(name for place in places for name in place.facts if not is_bookkeeping(name)):
        values = [UNKNOWN if (value := place.facts.get(name)) is None else value for place in places]
        term = compared(name, places, values, _SOURCE, different="the runs report other values")
        ours = name in (STACK, COMMIT) or name.startswith(_VARIABLE)
        if name == RELEASE and UNKNOWN in values:
            continue
        if not term.arms or (term.verdict != "mixed" and (not several or (ours and len(term.arms) < 2))):
            continue
        if name == MEASUREMENT and term.verdict == "equal":
            continue
        if name.startswith(_ENGINE) and term.verdict == "unverifiable" and len(engines) > 1:
            continue  # a name of one engine's own
        if name in (STACK, RELEASE, f"{_ENGINE}name") and term.verdict == "different":
            term = replace(term, why=COMPARED)
        elif name.removeprefix(_VARIABLE) in NO_SPEED:
            term = equivalent(term, "it does not affect speed")
        elif name == COMMIT and term.verdict == "equal" and CHANGED in str(values[0]):
            term = replace(term, verdict="unverifiable", why="the uncommitted changes may differ")
        yield term


def _settings(preflight: Preflight, places: Sequence[RunPlace]) -> Iterator[Term]:
    """Settings and packages in which runs differ that were composed as equal."""
    for row in preflight.ledger:
        values = [place.settings.get(row.setting, UNKNOWN) for place in places]
        if all(value == UNKNOWN for value in values) or is_bookkeeping(row.setting) or row.setting.endswith("_dir"):
            continue
        term = compared(row.setting, places, values, _SOURCE, different="the runs report other values")
        if term.verdict == "mixed" or (term.verdict == "different" and row.verdict == "equal"):
            yield term


def terms_table(preflight: Preflight | None, plan: PlanRead) -> pd.DataFrame:
    """The table of terms: setting, value/<arm> (text, "" where it has none), verdict, why, source."""
    ledger: Sequence[LedgerRow] = preflight.ledger if preflight else ()
    rows = [
        [row.setting, *(row.values.get(arm, "") for arm in plan.arms), row.verdict, row.why, row.source]
        for row in ledger
    ]
    columns = ["setting", *(f"value/{arm}" for arm in plan.arms), "verdict", "why", "source"]
    return pd.DataFrame(rows, columns=columns).astype(str)


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


def stack_of(run: Run) -> tuple[str, str]:
    """A run's stack and lock."""
    return str(run.spec.get("stack", "")), str(run.spec.get("lock_id", ""))
