"""Makes the fairness ledger: a row per setting, equal between the arms or not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from common.findings import EQUALITIES, NONE, SEVERAL, UNKNOWN, Equality, LedgerRow
from trainers.cases import Case, points_of
from trainers.rows import Behaviour
from trainers.terms import TERMS, TermValue, no_effect, terms_of
from workflow.preflight.checks.comparison import (
    FACTS,
    behaviours_of,
    engines_own,
    fact_of,
    matters,
    names_the_engine,
)
from workflow.preflight.checks.variables import HARMLESS
from workflow.preflight.import_settings import UnknownSettings

# Compared between stacks: what computes. Each engine's own packages are what is compared.
_PACKAGES = (
    *("torch", "triton", "transformers", "flash-attn", "nvidia-nccl-cu12", "nvidia-cudnn-cu12"),
    *("ray", "numpy", "trl", "verl"),
)


def ledger_of(cases: Sequence[Case], unknown: Sequence[UnknownSettings] = ()) -> list[LedgerRow]:
    """All rows: what engines make of settings, the workload, variables and packages, then every other setting.

    Of `unknown` runs no row knows more than the experiment says of them, and none calls them equal.
    """
    first = [row for behaviour in behaviours_of(cases) if (row := _behaviour_row(behaviour, cases))]
    terms = terms_of(cases)
    named = [
        *first,
        *_term_rows(cases, terms),
        *_workload_rows(cases),
        *_environment_rows(cases),
        *_package_rows(cases),
    ]
    rest = list(_setting_rows(cases, terms))
    if unknown:
        # One arm's settings alone are no comparison.
        rest = rest if len({case.arm for case in cases}) > 1 else []
        facts = _fact_rows(cases, unknown)
        named = [row for row in named if row.setting not in {fact.setting for fact in facts}]
        named = [_untold_row(unknown, cases), *facts, *(_with_untold(row, unknown) for row in named)]
        rest = [_with_untold(row, unknown) for row in rest]
    uneven = [row for row in rest if row.verdict != "equal"]
    equal = [row for row in rest if row.verdict == "equal"]
    return [*sorted([*named, *uneven], key=lambda row: EQUALITIES.index(row.verdict)), *equal]


def _by_arm(cases: Sequence[Case], values: Iterable[object]) -> dict[str, str]:
    """Each arm's values as one text; `values` are those of the cases, one each."""
    texts: dict[str, dict[str, None]] = {}
    for case, value in zip(cases, values, strict=True):
        texts.setdefault(case.arm, {})[_text(value)] = None
    return {arm: SEVERAL.join(some) for arm, some in texts.items()}


def _differ(cases: Sequence[Case], values: Iterable[object]) -> bool:
    """Whether arms differ at any one point of the sweep; that a factor varies is no difference between arms."""
    told = {id(case): json.dumps(value, default=str) for case, value in zip(cases, values, strict=True)}
    return any(len({told[id(case)] for case in point}) > 1 for point in points_of(cases))


def _settings(key: str, cases: Sequence[Case]) -> list[object]:
    """A setting's value in each case."""
    return [case.settings.get(key) if key in case.settings else NONE for case in cases]


def _behaviour_row(behaviour: Behaviour, cases: Sequence[Case]) -> LedgerRow | None:
    if not all(case.on_gpu for case in cases) or not any(case.place in behaviour.effects for case in cases):
        return None
    told = [behaviour.describe(case) for case in cases]
    sources = dict.fromkeys(behaviour.effects[case.place].source for case in cases if case.place in behaviour.effects)
    verdict, why = _behaviour_verdict(behaviour, cases, told)
    keys = [key for key in behaviour.keys if any(key in case.settings for case in cases)]
    name = behaviour.name + (f" ({keys[0]})" if keys else "")
    values = _by_arm(cases, [value or UNKNOWN for value in told])
    return LedgerRow(name, values, verdict, why, "; ".join(sources))


def _behaviour_verdict(behaviour: Behaviour, cases: Sequence[Case], told: Sequence[str | None]) -> tuple[Equality, str]:
    if None in told:
        return "unverifiable", "it cannot be told without the engine what it takes here"
    if _differ(cases, told):
        if not behaviour.effect_known:
            return "unverifiable", behaviour.why
        no_effect = behaviour.no_effect(list(cases))
        # Another meaning of the same number stays a difference, even where it can do nothing.
        if no_effect:
            return ("equivalent" if behaviour.equal_without_effect else "different"), no_effect
        return "different", behaviour.why
    if any(_differ(cases, _settings(key, cases)) for key in behaviour.keys):
        return "equivalent", "said in different words, to the same effect"
    return "equal", "the same in all arms"


def _row(
    setting: str, cases: Sequence[Case], values: Sequence[object], source: str, equal: str, different: str
) -> LedgerRow:
    """A row whose verdict is the plain one: the same value everywhere, or not."""
    verdict: Equality = "different" if _differ(cases, values) else "equal"
    why = different if verdict == "different" else equal
    return LedgerRow(setting, _by_arm(cases, values), verdict, why, source)


def _workload_rows(cases: Sequence[Case]) -> Iterator[LedgerRow]:
    for key in dict.fromkeys(key for case in cases for key in case.workload):
        yield _row(
            f"workload.{key}",
            cases,
            [case.workload.get(key) for case in cases],
            "the experiment's workload",
            "one workload for all arms",
            "the arms do not do the same work",
        )


def _environment_rows(cases: Sequence[Case]) -> Iterator[LedgerRow]:
    for name in dict.fromkeys(name for case in cases for name in case.env):
        row = _row(
            f"env.{name}",
            cases,
            [case.env.get(name, "not set") for case in cases],
            "the experiment's env",
            "set alike in all arms; whether it costs all of them the same, the findings say",
            "only some arms' processes have it",
        )
        if row.verdict == "different" and name in HARMLESS:
            row = replace(row, verdict="equivalent", why="it has no bearing on speed")
        yield row


def _package_rows(cases: Sequence[Case]) -> Iterator[LedgerRow]:
    for package in _PACKAGES:
        if cases and all(package in case.pins.packages for case in cases):
            yield _row(
                f"package {package}",
                cases,
                [case.pins.packages[package] for case in cases],
                "envs/<stack>/requirements.lock",
                "pinned alike",
                "the stacks pin different releases",
            )


def _term_rows(cases: Sequence[Case], terms: Mapping[str, Sequence[TermValue]]) -> Iterator[LedgerRow]:
    """What the settings of different trainers come to, in words of none of them."""
    for name, said in terms.items():
        values = [UNKNOWN if one.value is None else one.value for one in said]
        row = _row(f"term: {name}", cases, values, "trainers/terms.py", "the same in all trainers", TERMS[name])
        if UNKNOWN in values:
            row = replace(
                row, verdict="unverifiable", why="a trainer's settings do not tell it, or are not resolved yet"
            )
        elif row.verdict == "different":
            row = _judged_term(row, no_effect(name, terms, cases), said)
        yield row


def _judged_term(row: LedgerRow, nothing: str, said: Sequence[TermValue]) -> LedgerRow:
    """A difference between trainers: whether it does anything, and whether a setting could end it."""
    if nothing:
        return replace(row, verdict="equivalent", why=nothing)
    keys = ", ".join(dict.fromkeys(key for one in said for key in one.keys))
    return replace(row, why=f"{row.why}; {f'{keys} say it' if keys else 'no setting makes them equal'}")


def _setting_rows(cases: Sequence[Case], terms: Mapping[str, Sequence[TermValue]]) -> Iterator[LedgerRow]:
    spoken = {key for behaviour in behaviours_of(cases) for key in behaviour.keys}
    of_terms = {key for said in terms.values() for one in said for key in one.keys}
    composed = all(case.settings.composed for case in cases)
    source = "composed in the stack" if composed else "the packaged defaults and the overrides; not composed yet"
    on_gpu = all(case.on_gpu for case in cases)
    for key in dict.fromkeys(key for case in cases for key in case.settings.values):
        if (key in spoken and on_gpu) or key in of_terms:
            continue
        row = _row(key, cases, _settings(key, cases), source, "the same in all arms", "the configuration says so")
        if engines_own(key, cases) and any(key in case.settings.given for case in cases):
            # Also where both arms hold it, by the shared options: only one engine is given it.
            row = replace(row, verdict="unverifiable", why="an engine's own option: the other has none of that name")
        elif row.verdict == "different":
            row = _judged(row, key, cases)
        yield row


def _judged(row: LedgerRow, key: str, cases: Sequence[Case]) -> LedgerRow:
    """A difference between configured values, by what it can do."""
    if names_the_engine(key, cases):
        return replace(row, why="it is what is compared")
    if not matters(key, cases):
        return replace(
            row,
            verdict="equivalent",
            why="a place, a name, a tracker or a seed, or what the other engine has no use for",
        )
    if len({case.place for case in cases}) > 1 and not all(key in case.settings for case in cases):
        return replace(row, verdict="unverifiable", why="not every arm's trainer or engine has this setting")
    return row


def _fact_rows(cases: Sequence[Case], unknown: Sequence[UnknownSettings]) -> list[LedgerRow]:
    """What is known also of runs without settings; unverifiable where one of them does not say it."""
    rows = []
    runs = [*cases, *unknown]
    for name, setting in FACTS.items():
        facts = [fact_of(name, one) for one in runs]
        values = _by_arm(runs, [UNKNOWN if fact is None else fact for fact in facts])
        known = {value for value in values.values() if UNKNOWN not in value.split(SEVERAL)}
        verdict: Equality = "unverifiable" if None in facts else "equal"
        why = "the same in all arms" if verdict == "equal" else "not every run says it"
        if len(known) > 1:
            verdict, why = "different", "the arms did not run on the same terms"
        rows.append(LedgerRow(setting, values, verdict, why, "the experiment's workload and imports"))
    return rows


def _untold_row(unknown: Sequence[UnknownSettings], cases: Sequence[Case]) -> LedgerRow:
    """The row for all that is hidden where settings are not known: each arm's word, and why."""
    values = {case.arm: "as below" for case in cases} | {case.arm: UNKNOWN for case in unknown}
    why = "; ".join(dict.fromkeys(one.why for one in unknown))
    return LedgerRow(
        "all settings of the trainer and the engine", values, "unverifiable", why, "the imported run's source"
    )


def _with_untold(row: LedgerRow, unknown: Sequence[UnknownSettings]) -> LedgerRow:
    """A row with the arms that nothing is told of; a difference between the others stays one."""
    values = {**row.values, **{case.arm: _known_of(case, row.setting) for case in unknown}}
    if row.verdict == "different":
        return replace(row, values=values)
    silent = ", ".join(arm for arm, value in values.items() if value == UNKNOWN)
    if not silent:
        same = len(set(values.values())) == 1
        return replace(row, values=values, verdict=row.verdict if same else "different")
    return replace(row, values=values, verdict="unverifiable", why=f"it is not told of {silent}")


def _known_of(case: Case, setting: str) -> str:
    """What is known of a run without settings: its variables, as far as the experiment names them, and packages."""
    kind, _, name = setting.replace("package ", "package.", 1).partition(".")
    known = case.env if kind == "env" else case.pins.packages if kind == "package" else {}
    return known.get(name, UNKNOWN)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
