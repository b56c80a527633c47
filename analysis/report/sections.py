"""Arranges the report's sections: their figures, tables and sentences, in the page's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from analysis.estimates.gate import CONFIDENCE, LABELS
from analysis.estimates.ranking import ranking_lines
from analysis.report.content import Content
from analysis.report.provenance import made_of, shown_runs
from analysis.report.sample_completions import shown_samples
from analysis.report.tables import (
    Cell,
    Column,
    Table,
    count,
    interval_columns,
    number,
    records_of,
    shown_table,
    significant,
    text,
    times,
)
from analysis.report.timing_tables import shown_phases, shown_speed
from analysis.verdict.caveats import SAID
from common.findings import EQUALITIES, LedgerRow, Preflight
from common.messages import shortened
from common.verdicts import Verdict, count_of, verdict_groups

# With more settings, only the files list the equal ones.
MOST_SETTINGS = 1000
# The phase tables of more factor combinations are folded.
OPEN_TABLES = 1
FINDING_HEADS = {"arms": "arms", "why": "why", "change": "to change", "source": "source"}
# By equality: the words of one setting, and of several.
_EQUALITY = {
    "mixed": ("that differs between runs of one arm", "that differ between runs of one arm"),
    "different": ("that differs", "that differ"),
    "unverifiable": ("that cannot be verified", "that cannot be verified"),
    "equivalent": ("that has the same effect", "that have the same effect"),
    "equal": ("that is equal", "that are equal"),
}


@dataclass(frozen=True)
class Part:
    """A table, a figure or sentences (`lead`, text); `fold` is the line under which it is folded."""

    kind: Literal["table", "figure", "lines"]
    content: Any
    fold: str = ""


@dataclass(frozen=True)
class PageSection:
    id: str
    title: str
    parts: tuple[Part, ...]


def sections(content: Content) -> list[PageSection]:
    """The sections that have a part, in the page's order."""
    figures = {figure.name: Part("figure", figure) for figure in content.figures}
    drawn = {
        name: [figures[name]] if name in figures else []
        for name in ("step-time", "reward", "mismatch", "response-length")
    }
    every = {
        ("speed", "How much faster"): [*_tables(shown_speed(content)), *_ranking(content)],
        ("phases", "Where the step goes"): _phases(content),
        ("steps", "Seconds of each step"): drawn["step-time"],
        ("gate", "Do the arms train the same?"): [
            *drawn["reward"],
            *_tables(shown_gate(content)),
            *drawn["mismatch"],
            *_tables(shown_mismatch(content)),
        ],
        ("lengths", "How long the responses are"): drawn["response-length"],
        ("ledger", "Terms"): _terms(content),
        ("cost", "What it costs"): _tables(shown_cost(content)),
        ("samples", "What the policies wrote"): _samples(content),
        ("data", "Problems of the data"): _problems(content),
        ("provenance", "Where the numbers come from"): _provenance(content),
    }
    return [PageSection(id, title, tuple(parts)) for (id, title), parts in every.items() if parts]


def _tables(*tables: Table) -> list[Part]:
    return [Part("table", one) for one in tables if one.rows]


def _lines(lines: Sequence[tuple[str, str]], fold: str = "") -> list[Part]:
    return [Part("lines", lines, fold)] if lines else []


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{**row, "label": row["arm"]} for row in records_of(frame)]


def _phases(content: Content) -> list[Part]:
    tables = shown_phases(content)
    parts = [Part("table", one, one.caption if at >= OPEN_TABLES else "") for at, one in enumerate(tables)]
    text = (
        "A phase includes the phases inside it; its own seconds do not. Own seconds and those of no timer sum to the "
        "step; all timers added up count what is nested twice. Times as fast: over the steps that both arms have. "
        '"Copy TSV" and tables/ have all digits.'
    )
    if tables and {*content.tables["phases"]["path"]} == {content.trees[0].root}:
        why = dict.fromkeys(tree.overlap for tree in content.trees if tree.overlap)
        text = f"Only the whole step is known{''.join(f': {one}' for one in why)}."
    costs = shown_step_costs(content)
    return [*parts, *_lines([("", text)]), *(Part("table", one, one.caption) for one in [costs] if one.rows)]


def shown_step_costs(content: Content) -> Table:
    """By how much each phase grows with the responses."""
    columns = (
        Column("part", "phase", text, is_text=True),
        Column("per_1000_s", "seconds for 1,000 tokens of the mean response", significant),
        *interval_columns(significant),
        Column("from_tokens", "from", number(0), "mean response"),
        Column("to_tokens", "to", number(0), "mean response"),
    )
    rows = [{**row, "part": row["label"], "label": row["arm"]} for row in records_of(content.tables["step_costs"])]
    note = "A line for each run, over the compared steps; nothing is said of other lengths."
    return shown_table("step_costs", "What longer responses cost", "arm", columns, rows, note)


def _ranking(content: Content) -> list[Part]:
    """The settings of a sweep or of engines alone, each against the first of its workload."""
    columns = (
        Column("step_s", "seconds a step", number(3)),
        Column("ratio", "times the first's seconds", times),
        *interval_columns(times),
        Column("runs", "runs", count),
        Column("why", "why no ratio", text, is_text=True),
    )
    note = (
        "A run is one number: its mean seconds over the steps that all settings of a workload have. The intervals are "
        "independent: of twenty settings as fast as the first, about one seems slower by chance."
    )
    ranking = content.tables["ranking"]
    ranked = shown_table("ranking", "Settings, the fastest first", "arm", columns, _records(ranking), note)
    # Without a verdict these lines are the answer.
    lines = ranking_lines(ranking, content.plan) if content.arm_verdicts else []
    return [*_lines([("", line) for line in lines]), *_tables(ranked)]


def shown_gate(content: Content) -> Table:
    """Reward and truncated responses, against the baseline."""
    columns = (
        Column("quantity", "quantity", lambda name: Cell(LABELS[name]), is_text=True),
        Column("baseline", content.plan.baseline, significant),
        Column("arm_value", "this arm", significant),
        Column("difference", "difference", significant),
        *interval_columns(significant, confidence=CONFIDENCE),
        Column("verdict", "verdict", text, is_text=True),
        Column("baseline_runs", f"runs of {content.plan.baseline}", count),
        Column("arm_runs", "runs of the arm", count),
        Column("steps", "steps", count),
        Column("baseline_missing", f"steps that only {content.plan.baseline} lacks", _positive),
        Column("arm_missing", "steps that only the arm lacks", _positive),
    )
    note = "Means over the steps that are compared. Alike: the interval of the difference contains 0."
    return shown_table("gate", "The correctness gate", "arm", columns, _records(content.tables["gate"]), note)


def shown_mismatch(content: Content) -> Table:
    """How far each arm's engine is from its trainer, against the baseline."""
    columns = (
        Column("definition", "definition", text, is_text=True),
        Column("baseline", content.plan.baseline, significant),
        Column("arm_value", "this arm", significant),
        Column("ratio", "times as far", times),
        *interval_columns(times),
        Column("at_equal_lengths", "lengths", lambda equal: Cell("equal" if equal else "as they are"), is_text=True),
    )
    note = "Log-probabilities of the tokens that were sampled, by the engine and by the trainer. One number a run."
    rows = _records(content.tables["mismatch"])
    return shown_table("mismatch", "How far engine and trainer are apart", "arm", columns, rows, note)


def shown_cost(content: Content) -> Table:
    """GPU-hours, and with a price what a number of steps costs."""
    cost = content.tables["cost"]
    currency = str(cost["currency"].iloc[0]) if len(cost) else ""
    columns = (
        Column("gpus", "GPUs", count),
        Column("gpu_hours", "GPU-hours used", significant),
        Column("step_gpu_s", "GPU-seconds a step", significant),
        Column("price", f"{currency} per GPU-hour", number(2)),
        Column("cost", f"{currency}, of the used", significant),
        Column("to_steps", "for steps", count),
        Column("gpu_hours_to_steps", "GPU-hours for these", significant),
        Column("cost_to_steps", f"{currency} for these", significant),
        Column("why", "what is left out, so the true cost is higher", text, is_text=True),
    )
    note = (
        "Used: all steps, warm-up included, with the checkpoints and evaluations that they time, and the logged time "
        "between them; no start."
    )
    if not (cost["price"] > 0).any():
        note += " No price is set: report.price_per_gpu_hour in the configuration sets one."
    return shown_table("cost", "GPU-hours and cost", "arm", columns, _records(cost), note)


def _positive(value: float) -> Cell:
    """A count; blank where it is zero."""
    return count(value) if value > 0 else Cell("")


def _terms(content: Content) -> list[Part]:
    """The findings about the terms, and all settings: first those that differ."""
    preflight = content.preflight
    if preflight is None:
        text = "No preflight: the terms of the arms were not checked. The command preflight checks them."
        return _lines([("", text)])
    serious = [finding for finding in preflight.findings if finding.level != "odd"]
    odd = [finding for finding in preflight.findings if finding.level == "odd"]
    parts = _lines([("", f"{preflight.counts}."), *((f"{one.level} {one.code}", one.what) for one in serious)])
    if odd:
        lines = [(f"{one.level} {one.code}", one.what) for one in odd]
        parts += _lines(lines, count_of(len(odd), "odd finding"))
    if preflight.findings:
        parts.append(Part("table", _changes(preflight), "Why, and what to change"))
    for equality in EQUALITIES:
        rows = preflight.rows(equality)
        caption = f"{count_of(len(rows), 'setting')} {_EQUALITY[equality][len(rows) != 1]}"
        if equality == "equal" and len(rows) > MOST_SETTINGS:
            parts += _lines([("", f"{caption}: tables/settings.csv has them.")])
        elif rows:
            fold = "" if equality in ("mixed", "different") else caption
            parts.append(Part("table", _ledger_table(rows, caption, list(content.plan.arms)), fold))
    unchecked = [("", one) for one in preflight.unverifiable]
    fold = f"{count_of(len(unchecked), 'check')} that the preflight could not make"
    return [*parts, *_lines(unchecked, fold)]


def _changes(preflight: Preflight) -> Table:
    """What to change, and of findings that are about no single setting why."""
    of_settings = {row.why for row in preflight.ledger}
    columns = [Column(name, head, text, is_text=True) for name, head in FINDING_HEADS.items()]
    records = []
    for one in preflight.findings:
        why = {} if one.why in of_settings else {"why": one.why}
        records.append({**one.as_dict(), "label": one.code, "why": "", "arms": ", ".join(one.arms)} | why)
    return shown_table("ledger", "Findings", "finding", columns, records)


def _ledger_table(rows: Sequence[LedgerRow], caption: str, arms: Sequence[str]) -> Table:
    columns = [Column(f"value/{arm}", arm, text, is_text=True) for arm in arms]
    columns.append(Column("why", "why", text, is_text=True))
    records = [
        {
            "label": row.setting,
            "why": f"{row.why} ({row.source})",
            **{f"value/{arm}": v for arm, v in row.values.items()},
        }
        for row in rows
    ]
    return shown_table("ledger", caption, "setting", columns, records)


def _samples(content: Content) -> list[Part]:
    tables, note = shown_samples(content.tables["samples"], content.plan.arms)
    folds = [f"{at}. {shortened(' '.join(one.caption.split()), 80)}" for at, one in enumerate(tables, 1)]
    return _lines([("", note)] if note else []) + [
        Part("table", one, fold) for one, fold in zip(tables, folds, strict=True)
    ]


def _problems(content: Content) -> list[Part]:
    """The errors and warnings that are no caveat of an answer."""
    caveats = [caveat.text for one in content.arm_verdicts for caveat in one.caveats]
    shown = []
    for level, code, (first, *more) in verdict_groups(content.verdicts):
        # The answer says its own reason, and the first of those that are alike.
        said = (caveats and SAID.get(code)) or any(first.text in text for text in caveats)
        if level != "note" and not said:
            shown.append((f"{level} {code}", first.text + (f" (and {len(more)} more like it)" if more else "")))
    return _lines(shown)


def _provenance(content: Content) -> list[Part]:
    notes = [_message(one) for one in content.verdicts if one.level == "note"]
    parts = _lines(notes, fold=count_of(len(notes), "note"))
    if not content.runs:
        return parts
    runs = shown_runs(content.tables["runs"])
    fold = count_of(len(content.runs), "run") if len(content.runs) > 12 else ""
    return [*_lines([("", line) for line in made_of(content)]), Part("table", runs, fold), *parts]


def _message(one: Verdict) -> tuple[str, str]:
    return f"{one.level} {one.code}", one.text
