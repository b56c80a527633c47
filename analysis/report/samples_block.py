"""Arranges sample completions for the page and the Markdown: a prompt, and what each arm's policy made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.report.content import Content
from analysis.runs import rows_of
from common.verdicts import count_of
from node.samples import shorten

STAGES = ("before training", "halfway", "after training")
MOST_PROMPTS, MOST_ARMS, MOST_CHARACTERS = 6, 8, 900


@dataclass(frozen=True)
class ShownSample:
    """A completion as it is shown."""

    text: str
    facts: str
    """After how many steps it was taken, its length, its rewards, and whether it is shown whole."""


@dataclass(frozen=True)
class SamplePrompt:
    """A prompt, and by arm a completion for each of `STAGES`; None where there is none."""

    prompt: str
    arms: dict[str, tuple[ShownSample | None, ...]]

    @property
    def start(self) -> str:
        """The prompt in one line."""
        line = " ".join(self.prompt.split())
        return line if len(line) <= 80 else f"{line[:79]}…"


@dataclass(frozen=True)
class SamplesBlock:
    """The samples that are shown, and of what they are."""

    prompts: tuple[SamplePrompt, ...]
    note: str


def samples_block(content: Content) -> SamplesBlock | None:
    """The first prompts' completions of the first run of each arm; None without any sample."""
    frame = content.tables["samples"]
    if frame.empty:
        return None
    first = {arm: frame.loc[frame["arm"] == arm, "run_id"] for arm in content.plan.arms}
    runs = {arm: ids.iloc[0] for arm, ids in first.items() if len(ids)}
    shown = dict(list(runs.items())[:MOST_ARMS])
    mine = frame[frame["run_id"].isin(shown.values())]
    groups = [rows for _, rows in mine.groupby(["row", "prompt"])]
    prompts = tuple(_prompt(rows, list(shown)) for rows in groups[:MOST_PROMPTS])
    how = "; ".join(f"{', '.join(arms)}: {how}" for how, arms in _arms_by_how(mine).items())
    note = (
        f"The first prompts, the same for every run. Each arm's first run is shown: {', '.join(shown.values())}. {how}."
    )
    if len(groups) > len(prompts) or frame["run_id"].nunique() > len(shown):
        note += " tables/samples has all."
    if without := [arm for arm in content.plan.arms if arm not in runs]:
        note += f" No samples: {', '.join(without)}."
    return SamplesBlock(prompts, note)


def _arms_by_how(rows: pd.DataFrame) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows_of(rows[["arm", "how"]].drop_duplicates()):
        found.setdefault(row.how, []).append(row.arm)
    return found


def _prompt(rows: pd.DataFrame, arms: list[str]) -> SamplePrompt:
    made: dict[str, list[ShownSample | None]] = {arm: [None] * len(STAGES) for arm in arms}
    for row in rows_of(rows):
        made[row.arm][0 if row.step == 0 else 2 if row.step == row.steps else 1] = _shown(row)
    prompt = str(rows["prompt"].iloc[0])
    return SamplePrompt(shorten(prompt, MOST_CHARACTERS), {arm: tuple(some) for arm, some in made.items()})


def _shown(row: Any) -> ShownSample:
    facts = [f"step {row.step}", count_of(row.tokens, "token") + (", cut off" if row.cut_off else "")]
    for name, value in json.loads(row.rewards).items():
        facts.append(f"{name} {'none' if value is None else f'{value:.3g}'}")
    if row.characters > MOST_CHARACTERS:
        facts.append(f"the middle of {row.characters:,} characters is not shown")
    return ShownSample(shorten(row.completion, MOST_CHARACTERS), " · ".join(facts))


def samples_rows(block: SamplesBlock, most: int = 160) -> list[tuple[str, ...]]:
    """Of the first prompt: rows of arm and its completions, each in one line."""
    first = block.prompts[0]

    def line(one: ShownSample | None) -> str:
        text = " ".join(one.text.split()) if one else "—"
        return text if len(text) <= most else f"{text[: most - 1]}…"

    return [(arm, *(line(one) for one in made)) for arm, made in first.arms.items()]
