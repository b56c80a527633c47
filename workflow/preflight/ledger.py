"""Makes the fairness ledger: one row per setting, with a verdict on whether the arms are equal in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from common.findings import COMPARED, EQUALITIES, NONE, SEVERAL, UNKNOWN, Equality, LedgerRow
from trainers.cases import Behaviour, Case, points_of
from workflow.preflight.comparison import (
    FACTS,
    behaviour_keys,
    behaviours_of,
    engines_own,
    fact_of,
    matters,
    names_the_engine,
)
from workflow.preflight.import_settings import UnknownSettings
from workflow.preflight.variables import HARMLESS

# The packages that compute. The engines' own packages are not listed: they are what is compared.
_PACKAGES = (
    *("torch", "triton", "transformers", "flash-attn", "nvidia-nccl-cu12", "nvidia-cudnn-cu12"),
    *("ray", "numpy", "trl", "verl"),
)


def ledger_of(cases: Sequence[Case], unknown: Sequence[UnknownSettings] = ()) -> list[LedgerRow]:
    """All rows: engine behaviours, common names, workload, variables and packages, then every other setting.

    Rows of `unknown` runs hold only what the experiment states of them, and are never equal.
    """
    named = [row for behaviour in behaviours_of(cases) if (row := _behaviour_row(behaviour, cases))]
    named += [*_common_rows(cases), *_declared_rows(cases)]
    rest = list(_setting_rows(cases))
    if unknown:
        # The settings of a single arm are no comparison.
        rest = rest if len({case.arm for case in cases}) > 1 else []
        facts = _fact_rows(cases, unknown)
        named = [row for row in named if row.setting not in {fact.setting for fact in facts}]
        named = [_unknown_row(unknown, cases), *facts, *(_with_unknown(row, unknown) for row in named)]
        rest = [_with_unknown(row, unknown) for row in rest]
    uneven = [row for row in rest if row.verdict != "equal"]
    equal = [row for row in rest if row.verdict == "equal"]
    return [*sorted([*named, *uneven], key=lambda row: EQUALITIES.index(row.verdict)), *equal]


def _by_arm(cases: Sequence[Case], values: Iterable[object]) -> dict[str, str]:
    """Each arm's values in one text; `values` has one per case."""
    texts: dict[str, dict[str, None]] = {}
    for case, value in zip(cases, values, strict=True):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        texts.setdefault(case.arm, {})[text] = None
    return {arm: SEVERAL.join(some) for arm, some in texts.items()}


def _differ(cases: Sequence[Case], values: Iterable[object]) -> bool:
    """Whether arms differ at any one point of the sweep; a swept factor is no difference between arms."""
    texts = {id(case): json.dumps(value, default=str) for case, value in zip(cases, values, strict=True)}
    return any(len({texts[id(case)] for case in point}) > 1 for point in points_of(cases))


def _settings(key: str, cases: Sequence[Case]) -> list[object]:
    """A setting's value in each case."""
    return [case.settings.get(key) if key in case.settings else NONE for case in cases]


def _behaviour_row(behaviour: Behaviour, cases: Sequence[Case]) -> LedgerRow | None:
    sources = dict.fromkeys(effect.source for case in cases if (effect := case.effect(behaviour.code)))
    if not all(case.on_gpu for case in cases):
        return None
    if not sources:
        # Of one engine the settings are rows themselves.
        engines = {case.engine.name for case in cases}
        values = {case.arm: UNKNOWN for case in cases}
        why = "what this release of the trainer gives each engine is not declared"
        where = "trainers/<trainer>/releases/"
        return LedgerRow(behaviour.name, values, "unverifiable", why, where) if len(engines) > 1 else None
    effects = [case.behaviour(behaviour.code) for case in cases]
    verdict, why = _behaviour_verdict(behaviour, cases, effects)
    keys = [key for key in behaviour.keys if any(key in case.settings for case in cases)]
    name = behaviour.name + (f" ({keys[0]})" if keys else "")
    values = _by_arm(cases, [effect or UNKNOWN for effect in effects])
    return LedgerRow(name, values, verdict, why, "; ".join(sources))


def _behaviour_verdict(
    behaviour: Behaviour, cases: Sequence[Case], effects: Sequence[str | None]
) -> tuple[Equality, str]:
    if None in effects:
        return "unverifiable", "only the engine itself can tell what it uses here"
    if _differ(cases, effects):
        reason = behaviour.no_effect(list(cases))
        # A number that means something else stays a difference even if it has no effect.
        if reason:
            return ("equivalent" if behaviour.equal_without_effect else "different"), reason
        return "different", behaviour.why
    if any(_differ(cases, _settings(key, cases)) for key in behaviour.keys):
        return "equivalent", "different settings with the same effect"
    return "equal", "the same in all arms"


def _row(
    setting: str, cases: Sequence[Case], values: Sequence[object], source: str, equal: str, different: str
) -> LedgerRow:
    """A row that is `equal` or `different` by its values alone; these two give the reason."""
    verdict: Equality = "different" if _differ(cases, values) else "equal"
    why = different if verdict == "different" else equal
    return LedgerRow(setting, _by_arm(cases, values), verdict, why, source)


def _keys(cases: Sequence[Case], part: Callable[[Case], Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(key for case in cases for key in part(case)))


def _declared_rows(cases: Sequence[Case]) -> Iterator[LedgerRow]:
    """The workload, the variables and the packages."""
    for key in _keys(cases, lambda case: case.workload):
        values = [case.workload.get(key) for case in cases]
        same, different = "one workload for all arms", "the arms do not do the same work"
        row = _row(f"workload.{key}", cases, values, "the experiment's workload", same, different)
        if row.verdict == "different" and any(case.imported for case in cases if case.workload.get(key) is None):
            row = replace(row, verdict="unverifiable", why="not every run states it")
        yield row
    for name in _keys(cases, lambda case: case.env):
        same = "the same in all arms; a finding reports it if some arms pay more for it"
        texts = [case.env.get(name, "not set") for case in cases]
        row = _row(f"env.{name}", cases, texts, "the experiment's env", same, "only some arms' processes have it")
        if row.verdict == "different" and name in HARMLESS:
            row = replace(row, verdict="equivalent", why="it does not affect speed")
        yield row
    for package in _PACKAGES:
        versions = [case.pins.packages.get(package) for case in cases]
        if versions and None not in versions:
            lock, different = "envs/<stack>/requirements.lock", "the stacks pin different releases"
            yield _row(f"package {package}", cases, versions, lock, "the same pin in all stacks", different)


def _common_names(cases: Sequence[Case]) -> list[str]:
    """The names (`Trainer.keys`) under which different trainers' settings are compared, beside the workload's."""
    of_all = [case.trainer.keys for case in cases] if len({case.trainer.name for case in cases}) > 1 else []
    names = dict.fromkeys(name for keys in of_all for name in keys if all(name in other for other in of_all))
    stated = {key for case in cases for key in case.workload}
    return [name for name in names if name not in ("engine", "prompts") and name not in stated]


def _common_rows(cases: Sequence[Case]) -> Iterator[LedgerRow]:
    """The settings of different trainers that have a common name."""
    for name in _common_names(cases):
        found = [case.trainer.lookup(case.settings.values, name) for case in cases]
        keys = ", ".join(dict.fromkeys(case.trainer.key(name) for case in cases))
        values = [UNKNOWN if value is None else value for value in found]
        row = _row(name, cases, values, keys, "the same in all trainers", "the trainers' settings differ")
        if None in found:
            row = replace(row, verdict="unverifiable", why="not every trainer's settings state it")
        yield row


def _setting_rows(cases: Sequence[Case]) -> Iterator[LedgerRow]:
    """Every setting that no behaviour describes and that has no common name."""
    common = {key for name in _common_names(cases) for case in cases for key in case.trainer.keys[name]}
    described = common | (behaviour_keys(cases) if all(case.on_gpu for case in cases) else set())
    composed = all(case.settings.composed for case in cases)
    source = "composed in the stack" if composed else "the packaged defaults and the overrides; not composed yet"
    for key in _keys(cases, lambda case: case.settings.values):
        if key in described:
            continue
        row = _row(key, cases, _settings(key, cases), source, "the same in all arms", "the configuration sets it so")
        if engines_own(key, cases) and any(key in case.settings.given for case in cases):
            # Shared options may set it in both arms, but only one engine receives it.
            row = replace(row, verdict="unverifiable", why="an engine's own option: the other has none of that name")
        elif row.verdict == "different":
            row = _judged(row, key, cases)
        yield row


def _judged(row: LedgerRow, key: str, cases: Sequence[Case]) -> LedgerRow:
    """A row of different values, with the verdict on their effect."""
    if names_the_engine(key, cases):
        return replace(row, why=COMPARED)
    if not matters(key, cases):
        why = "a place, a name, a tracker or a seed, or an option that the other engine ignores"
        return replace(row, verdict="equivalent", why=why)
    if len({case.place for case in cases}) > 1 and not all(key in case.settings for case in cases):
        return replace(row, verdict="unverifiable", why="not every arm's trainer or engine has this setting")
    return row


def _fact_rows(cases: Sequence[Case], unknown: Sequence[UnknownSettings]) -> list[LedgerRow]:
    """What is known even of runs without settings; unverifiable if one of them does not state it."""
    rows = []
    runs = [*cases, *unknown]
    for name, fact in FACTS.items():
        facts = [fact_of(name, case) for case in runs]
        values = _by_arm(runs, [UNKNOWN if one is None else one for one in facts])
        known = {value for value in values.values() if UNKNOWN not in value.split(SEVERAL)}
        verdict: Equality = "unverifiable" if None in facts else "equal"
        why = "the same in all arms" if verdict == "equal" else "not every run states it"
        if len(known) > 1:
            verdict, why = "different", "the arms did not run under the same terms"
        rows.append(LedgerRow(fact.row, values, verdict, why, "the experiment's workload and imports"))
    return rows


def _unknown_row(unknown: Sequence[UnknownSettings], cases: Sequence[Case]) -> LedgerRow:
    """One row for all unknown settings, with the reason why they are unknown."""
    values = {case.arm: "as below" for case in cases} | {case.arm: UNKNOWN for case in unknown}
    why = "; ".join(dict.fromkeys(one.why for one in unknown))
    return LedgerRow(
        "all settings of the trainer and the engine", values, "unverifiable", why, "the imported run's source"
    )


def _with_unknown(row: LedgerRow, unknown: Sequence[UnknownSettings]) -> LedgerRow:
    """A row with the arms of unknown settings added; a difference between the others remains one."""
    values = {**row.values, **{case.arm: _known_of(case, row.setting) for case in unknown}}
    if row.verdict == "different":
        return replace(row, values=values)
    missing = ", ".join(arm for arm, value in values.items() if value == UNKNOWN)
    if missing:
        return replace(row, values=values, verdict="unverifiable", why=f"its value in {missing} is unknown")
    return replace(row, values=values, verdict=row.verdict if len(set(values.values())) == 1 else "different")


def _known_of(case: Case, setting: str) -> str:
    """A variable or a package version of a run without settings, where it is known."""
    kind, _, name = setting.replace("package ", "package.", 1).partition(".")
    known = case.env if kind == "env" else case.pins.packages if kind == "package" else {}
    return known.get(name, UNKNOWN)
