"""Makes the report's sections that are one table and its figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from analysis.estimates.gate import LABELS
from analysis.estimates.parts import ENGINE, LENGTHS, RAW, REST, SYNC
from analysis.estimates.ranking import ranking_lines
from analysis.report.cells import MINUS, Cell, Table, count, in_full, number, percent, seconds, significant, times
from analysis.report.comparison_tables import VERDICT_WORDS, Column, frame_table, word
from analysis.report.content import Content
from analysis.report.floor_words import floor_lines
from analysis.runs import at
from analysis.wide import SINGLE_REWARD


@dataclass(frozen=True)
class ReportSection:
    """A heading, a table (perhaps without rows), and the names of the figures under it."""

    id: str
    title: str
    table: Table
    figures: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """Sentences under the table."""


def sections(content: Content) -> list[ReportSection]:
    """Those that have anything to show, in the page's order."""
    lines = tuple(floor_lines(content))
    drawn = {figure.name for figure in content.figures}
    single = (figure.name for figure in content.figures if figure.name.startswith(SINGLE_REWARD))
    rewards = ("reward", *single, "reward-distribution")
    each = rewards_block(content)
    gate = () if each.rows else rewards
    ranked = tuple(ranking_lines(content.tables["ranking"]))
    found = [
        ReportSection("ranking", "Settings, the fastest first", ranking_block(content), ("ranking",), ranked),
        ReportSection("explained", "What the ratio is made of", explained_block(content), (), explained_lines(content)),
        ReportSection("stragglers", "What the step waits for", stragglers_block(content), ("stragglers",), lines),
        ReportSection("gate", "Do the arms train the same?", gate_block(content), gate),
        ReportSection("rewards", "What was rewarded", each, () if gate else rewards),
        ReportSection("cost", "What it costs", cost_block(content)),
    ]
    return [s for s in found if s.table.rows or drawn & set(s.figures)]


# What the heads of the table of stragglers mean; only those that it shows are explained.
STRAGGLER_WORDS = {
    "longest / mean": "Longest / mean: sums over the steps.",
    "length bubble": "Length bubble, 1 − mean / longest: the share of the batch's places that wait for the longest.",
    "tail": "Tail: decode iterations in which at most a tenth of the responses still runs.",
    "Amdahl's ceiling": "Ceiling, 1 / (1 − generation's share): what an engine that took no time would bring.",
    "decode floor, s": "Floor: the least that the GPUs' data sheet allows.",
    "efficiency": "Efficiency: floor over generation.",
}


def ranking_block(content: Content) -> Table:
    """The settings of engines that ran alone on equal completions, each against the first."""
    columns = (
        Column("rank", "rank", count),
        Column("step_s", "s/step", _seconds),
        Column("tokens_per_s", "tokens/s", lambda value: number(value, 1)),
        Column("ratio", "times the first's seconds", times),
        Column("low", "95% from", times),
        Column("high", "to", times),
        Column("verdict", "verdict", word, words=True),
        Column("runs", "runs", count),
        Column("steps", "steps", count),
        Column("why", "why", word, words=True),
    )
    note = (
        "Seconds of a step over the first setting's, over the steps that both have. All wrote completions of the same "
        "lengths. Each interval stands for itself: of twenty settings as fast as the first, about one is called "
        "slower by chance. More seeds resolve more."
    )
    return frame_table(content, "ranking", columns, "Settings ranked by seconds of a step", note=note)


def explained_block(content: Content) -> Table:
    """Each explained arm's raw ratio, and the factors that multiply to it."""
    columns = (
        Column("label", "factor", word, words=True),
        Column("value", "of the step", times),
        Column("low", "95% from", times),
        Column("high", "to", times),
        Column("verdict", "verdict", lambda verdict: Cell(VERDICT_WORDS.get(verdict, str(verdict))), words=True),
        Column("share", "share of the ratio", percent),
        Column("phase_ratio", "of its own phase", times),
        Column("replay_pairs", "replays paired", _some),
        Column("estimator", "from", word, words=True),
        Column("why", "why not", word, words=True),
    )
    note = (
        "Engine, lengths, weight sync and rest multiply to raw. Of its own phase: the ratio before the other phases "
        "dilute it. Share: of the logarithm of raw; below 0 a factor works the other way. A factor without data is "
        "part of the rest."
    )
    return frame_table(
        content,
        "explained",
        columns,
        "The raw ratio as a product",
        label=lambda r: f"{r.arm} vs {r.baseline}",
        corner="arms",
        note=note,
    )


def explained_lines(content: Content) -> tuple[str, ...]:
    """Each product as one sentence."""
    told = []
    for (factors, arm), rows in content.tables["explained"].groupby(["factors", "arm"], sort=False):
        value = dict(zip(rows["part"], rows["value"], strict=True))
        words = [f"{PART_WORDS[part]} {times(value[part]).text}" for part in PART_WORDS if value.get(part, 0) > 0]
        unknown = [PART_WORDS[part] for part in PART_WORDS if not value.get(part, 0) > 0]
        lacking = f" ({' and '.join(unknown)}: not known)" if unknown else ""
        told.append(
            f"{arm} vs {content.plan.baseline}{at(str(factors))}: raw {times(value[RAW]).text} = "
            f"{' · '.join(words)}{lacking}."
        )
    return tuple(told)


PART_WORDS = {ENGINE: "engine", LENGTHS: "lengths", SYNC: "weight sync", REST: "rest"}


def _seconds(value: float) -> Cell:
    return seconds(value, 2 if value >= 100 else 3)


def _some(value: float) -> Cell:
    """A count; nothing where it is zero."""
    return count(value) if value > 0 else Cell("")


def stragglers_block(content: Content) -> Table:
    """How long the longest responses hold up a step, how far generation is from its floor, and Amdahl's ceiling."""
    columns = (
        Column("steps", "steps", count),
        Column("mean_length", "mean response, tokens", lambda value: number(value, 1)),
        Column("max_length", "longest response", lambda value: number(value, 1)),
        Column("straggler_ratio", "longest / mean", lambda value: number(value, 3)),
        Column("length_bubble", "length bubble", percent),
        Column("tail_share", "tail", percent),
        Column("generation_share", "generation's share", percent),
        Column("amdahl_ceiling", "Amdahl's ceiling", times),
        Column("generation_s", "generation, own s", _seconds),
        Column("floor_s", "decode floor, s", _seconds),
        Column("efficiency", "efficiency", percent),
    )
    caption = "Stragglers, ceiling and efficiency of each arm"
    made = frame_table(content, "stragglers", columns, caption)
    told = [text for head, text in STRAGGLER_WORDS.items() if head in made.heads]
    return replace(made, note=" ".join([*told, "A column that nothing tells is left out."]))


def gate_block(content: Content) -> Table:
    """Reward, truncated responses, and how far the rollout is from the trainer, against the baseline."""
    columns = (
        Column("quantity", "quantity", lambda name: Cell(LABELS.get(name, str(name))), words=True),
        Column("baseline", content.plan.baseline, significant),
        Column("arm_value", "arm", significant),
        Column("difference", "difference", significant),
        Column("low", "95% from", significant),
        Column("high", "to", significant),
        Column("verdict", "verdict", word, words=True),
        Column("run_pairs", "runs paired", count),
        Column("paired_steps", "steps paired", count),
        Column("baseline_missing", f"steps that only {content.plan.baseline} lacks", _some),
        Column("arm_missing", "steps that only the arm lacks", _some),
    )
    note = (
        "Means over the paired steps. Alike: the interval of the difference holds 0. An arm that is worse here did not "
        "do the same training faster. What a trainer does not log is not in the table."
    )
    return frame_table(content, "gate", columns, "The correctness gate", note=note)


def _weight(value: float) -> Cell:
    return Cell(f"{value:g}".replace("-", MINUS), in_full(value)) if math.isfinite(value) else Cell("")


def rewards_block(content: Content) -> Table:
    """Each reward's weight, and its change over training."""
    columns = (
        Column("reward", "reward", word, words=True),
        Column("weight", "weight", _weight),
        Column("first", "first quarter", significant),
        Column("last", "last quarter", significant),
        Column("change", "change", significant),
        Column("low", "95% from", significant),
        Column("high", "to", significant),
        Column("runs", "runs", count),
        Column("steps", "steps of a quarter", count),
    )
    note = (
        "Means before the weight, over the first and the last quarter of each run's steps, warm-up too. The interval "
        "is over runs (Student's t): one run has none. A change whose interval contains 0 may be chance."
    )
    return frame_table(content, "rewards", columns, "Each reward over training", note=note)


def cost_block(content: Content) -> Table:
    """GPU-hours, and with a price what so many steps would cost."""
    cost = content.tables["cost"]
    currency = str(cost["currency"].iloc[0]) if len(cost) else ""
    columns = (
        Column("gpus", "GPUs", count),
        Column("gpu_hours", "GPU-hours used", significant),
        Column("step_gpu_s", "GPU-seconds a step", significant),
        Column("price", f"{currency} per GPU-hour", significant),
        Column("cost", f"{currency}, of the used", significant),
        Column("to_steps", "for steps", count),
        Column("gpu_hours_to_steps", "GPU-hours for these", significant),
        Column("cost_to_steps", f"{currency} for these", significant),
        Column("why", "what is left out", word, words=True),
    )
    priced = len(cost) > 0 and bool((cost["price"] > 0).any())
    note = (
        "Used: all steps, warm-up too, and the time between them where it is logged; start, validation and checkpoints "
        "come on top. A step: in the mean of the counted steps that all arms have."
    )
    if len(cost) and cost["to_steps"].notna().any():
        note += " For so many steps: that many mean steps of one run."
    if len(cost) and cost["why"].astype(bool).any():
        note += " Left out: GPU-hours that were used and are in no number here, so that these are too few."
    if not priced:
        note += " No price is known: report.price_per_gpu_hour in the configuration gives one."
    return frame_table(content, "cost", columns, "GPU-hours and cost", note=note)
