"""Tabulates the sample completions that runs took at the start, halfway and at the end of training; arranges a few."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.report.tables import Column, Table, shown_table, text
from analysis.runs import Run, rows_of
from common.verdicts import Verdict, count_of
from node.samples import SAMPLES, sample_steps, shorten
from trainers.logs.log_files import json_lines

COLUMNS = [
    *("run_id", "arm", "factors", "seed", "attempt", "step", "steps", "how", "row", "prompt", "completion"),
    *("characters", "tokens", "cut_off", "rewards"),
]
STAGES = ("at the start", "halfway", "at the end")
MOST_PROMPTS, MOST_ARMS, MOST_CHARACTERS = 6, 8, 900
# Control characters end the text in some readers; tabs and line ends are text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def read_samples(runs: Sequence[Run]) -> tuple[pd.DataFrame, list[Verdict]]:
    """One row per run, stage and prompt (columns: `COLUMNS`), and verdicts on the requested stages that are missing.

    A stage is read from the last attempt that has it. `prompt` and `completion` are printable: a control character
    becomes its picture. `rewards` is JSON.
    """
    rows: list[dict[str, Any]] = []
    verdicts: list[Verdict] = []
    for run in runs:
        taken: dict[int, tuple[int, Mapping[str, Any]]] = {}
        for attempt in run.attempts if not run.imported else ():
            for path in run.attempt_files(SAMPLES, attempt):
                shown_as = f"{run.run_id}: attempts/{attempt}/{SAMPLES}"
                taken |= {one["step"]: (attempt, one) for one in json_lines(path, shown_as, _stage, verdicts)}
        head = {"run_id": run.run_id, "arm": run.arm, "factors": run.factors_key, "seed": run.seed}
        for step, (attempt, stage) in sorted(taken.items()):
            more = {"attempt": attempt, "step": step, "steps": stage["steps"], "how": stage["how"]}
            rows += [{**head, **more, **sample} for sample in stage["samples"]]
        verdicts += _missing(run, taken)
    return pd.DataFrame(rows, columns=COLUMNS), verdicts


def _missing(run: Run, taken: Mapping[int, tuple[int, Mapping[str, Any]]]) -> Iterator[Verdict]:
    """A note on each stage without complete samples."""
    workload = run.spec.get("workload")
    if run.imported or not isinstance(workload, Mapping) or not workload.get("samples"):
        return
    last = run.done.get("last_step")
    wanted = sample_steps(last, int(workload.get("test_steps") or 1)) if isinstance(last, int) else ()
    # The first is of the first policy: before a validation, or in the batch of step 1.
    missing = [step for step in wanted if step not in taken and max(1, step) not in taken]
    problems = {step: one["problem"] for step, (_, one) in taken.items()} | dict.fromkeys(missing, "no attempt has any")
    for step, problem in sorted(problems.items()):
        if problem:
            text = f"run {run.run_id}: sample completions of step {step}: {printable(problem)}"
            yield Verdict("note", "samples-missing", text)


def _stage(raw: Any, number: int) -> dict[str, Any]:
    """A line of samples.jsonl."""
    return {
        "step": _whole(raw, "step"),
        "steps": _whole(raw, "steps"),
        "how": printable(str(raw["how"])),
        "problem": None if raw.get("problem") is None else str(raw["problem"]),
        "samples": [_sample(one) for one in raw["samples"]],
    }


def _sample(raw: Any) -> dict[str, Any]:
    rewards = raw["rewards"]
    if not isinstance(rewards, dict) or not isinstance(raw["completion"], str):
        raise TypeError("completion must be text, and rewards an object")
    messages = [(str(one["role"]), str(one["content"])) for one in raw["prompt"]]
    texts = [content if len(messages) == 1 else f"{role}: {content}" for role, content in messages]
    return {
        "row": _whole(raw, "row"),
        "prompt": printable("\n\n".join(texts)),
        "completion": printable(raw["completion"]),
        "characters": _whole(raw, "characters"),
        "tokens": _whole(raw, "tokens"),
        "cut_off": raw["cut_off"] is True,
        "rewards": json.dumps({printable(name): float(v) if v is not None else None for name, v in rewards.items()}),
    }


def _whole(raw: Any, key: str) -> int:
    if not isinstance(raw, dict):
        raise TypeError(f"expected an object, got {type(raw).__name__}")
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{key} must be a whole number from 0 (got {value!r})")
    return value


def printable(text: str) -> str:
    """A text with a picture for each control character, such as ␀ for NUL; � where there is no picture."""

    def picture(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"

    return _CONTROL.sub(picture, text.replace("\r\n", "\n"))


def shown_samples(frame: pd.DataFrame, arms: Collection[str]) -> tuple[list[Table], str]:
    """A table for each of the first prompts, with completions of each arm's first run, and a note on their origin."""
    if frame.empty:
        return [], ""
    first = frame.drop_duplicates("arm").set_index("arm")["run_id"].to_dict()
    shown = {arm: first[arm] for arm in [arm for arm in arms if arm in first][:MOST_ARMS]}
    samples = frame[frame["run_id"].isin(shown.values())]
    # The first prompts of each stage, then the second ones.
    places = samples.assign(place=samples.groupby(["run_id", "step"]).cumcount())
    groups = [rows for _, rows in places.sort_values(["place", "step"]).groupby(["row", "prompt"], sort=False)]
    methods = samples[["arm", "how"]].drop_duplicates().groupby("how", sort=False)["arm"]
    sources = "; ".join(f"{', '.join(names)}: {how}" for how, names in methods)
    note = (
        "Prompts that are the same in every run of a trainer. Each arm shows its first run: "
        f"{', '.join(shown.values())}. {sources}."
    )
    if len(groups) > MOST_PROMPTS or frame["run_id"].nunique() > len(shown):
        note += " tables/samples has all."
    if missing := [arm for arm in arms if arm not in first]:
        note += f" No samples: {', '.join(missing)}."
    return [_prompt_table(rows, list(shown)) for rows in groups[:MOST_PROMPTS]], note


def _prompt_table(rows: pd.DataFrame, arms: Sequence[str]) -> Table:
    """The arms' completions of one prompt, by stage."""
    records = {arm: {"label": arm, **dict.fromkeys(STAGES, "not taken")} for arm in arms}
    stages = set()
    for row in rows_of(rows):
        stage = STAGES[2 if row.step == row.steps else 0 if row.step <= 1 else 1]
        stages.add(stage)
        records[row.arm][stage] = f"{shorten(row.completion, MOST_CHARACTERS) or '(empty)'}\n\n{_facts(row)}"
    # A batch of the training is of one stage, a validation's prompts of all.
    columns = [Column(stage, stage, text, is_text=True) for stage in STAGES if stage in stages]
    prompt = shorten(str(rows["prompt"].iloc[0]), MOST_CHARACTERS) or "(empty)"
    return shown_table("samples", prompt, "arm", columns, list(records.values()), sorts=False)


def _facts(row: Any) -> str:
    """A completion's step, length and rewards, and whether its middle is left out."""
    facts = [f"step {row.step}", count_of(row.tokens, "token") + (", cut off" if row.cut_off else "")]
    for name, value in json.loads(row.rewards).items():
        facts.append(f"{name} {'none' if value is None else f'{value:.3g}'}")
    if row.characters > MOST_CHARACTERS:
        facts.append(f"{row.characters:,} characters, without the middle")
    return " · ".join(facts)
