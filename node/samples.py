"""Writes sample completions of a policy: a line of samples.jsonl before, halfway through and after training.

How completions are had is each trainer's: transformers' Trainer generates them (node/hf_samples.py), verl's own
validation has them already.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.contracts import Sample, SamplesLine
from node.exit_codes import one_line
from node.records import append_json_line

SAMPLES = "samples.jsonl"
MOST_CHARACTERS = 10_000
"""Of a prompt's message and of a completion, as far as they are written: 32 samples are at most 4 MB a stage."""


def sample_steps(steps: int, every: int = 1) -> tuple[int, ...]:
    """After how many steps samples are taken: none, about half and all; where only each `every`-th step has some."""
    return tuple(sorted({0, steps // 2 // every * every, steps}))


def first_rows(data: Path, count: int) -> list[dict[str, Any]]:
    """The first rows of prepared data, whose prompts are completed."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(data).slice(0, count).to_pylist()
    return rows


def sample(
    at: int,
    row: Mapping[str, Any],
    completion: str,
    *,
    tokens: int,
    cut_off: bool,
    rewards: Mapping[str, float | None] | None = None,
) -> Sample:
    """A completion of a row's prompt as samples.jsonl has it; a reward that is no finite number is none."""
    told = {name: None if v is None or not math.isfinite(v) else float(v) for name, v in (rewards or {}).items()}
    return {
        "row": at,
        "prompt": [{key: _text(value) for key, value in message.items()} for message in row["prompt"]],
        "completion": _text(completion),
        "characters": len(completion),
        "tokens": tokens,
        "cut_off": cut_off,
        "rewards": told,
    }


def write_stage(
    path: Path, step: int, steps: int, how: str, make: Callable[[], tuple[list[Sample], str | None]]
) -> None:
    """Append what `make` gives, samples and what is wrong with them; whatever it raises is such a problem."""
    started = time.perf_counter()
    samples: list[Sample] = []
    try:
        samples, problem = make()
    except Exception as error:  # memory that does not suffice, say: samples are not worth a run
        problem = one_line(error)
    seconds = time.perf_counter() - started
    line: SamplesLine = {
        "step": step,
        "steps": steps,
        "how": how,
        "seconds": seconds,
        "problem": problem,
        "samples": samples,
    }
    append_json_line(path, line)
    told = f"{len(samples)} sample completions after step {step}"
    print(f"{told}, {seconds:.1f} s{f': {problem}' if problem else ''}", flush=True)


def shorten(text: str, most: int) -> str:
    """The first two thirds and the last third of so many characters: an answer stands at the end."""
    head = most * 2 // 3
    return text if len(text) <= most else f"{text[:head]} … {text[head - most :]}"


def _text(value: Any) -> str:
    """A text that is not too long as UTF-8 can have it: half a surrogate pair becomes a question mark."""
    return shorten(str(value), MOST_CHARACTERS).encode("utf-8", "replace").decode()
