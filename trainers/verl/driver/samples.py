"""Makes samples.jsonl of the completions that verl's validations log (`trainer.validation_data_dir`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.contracts import Sample
from common.retry import exists, retry_io
from node.exit_codes import one_line
from node.samples import SAMPLES, sample, sample_steps, write_samples

_OURS = "validation"


def log_validations(config: Any, folder: Path) -> None:
    """Have verl write `<step>.jsonl` of each validation, in the attempt's folder unless the user has a place."""
    config.trainer.validation_data_dir = config.trainer.validation_data_dir or str(folder / _OURS)


def take_samples(config: Any, folder: Path, model: Path, count: int, rewards: Sequence[str]) -> None:
    """Write the samples of the data's first `count` prompts, and remove the files that only we asked for."""
    try:
        _take(config, folder, model, count, rewards)
    except Exception as error:  # samples must not end a run
        print(f"no sample completions: {one_line(error)}", flush=True)
    shutil.rmtree(folder / _OURS, ignore_errors=True)


def _take(config: Any, folder: Path, model: Path, count: int, rewards: Sequence[str]) -> None:
    import pyarrow.parquet as pq
    from transformers import AutoTokenizer

    rows = pq.read_table(str(config.data.val_files)).slice(0, count).to_pylist()
    tokenizer, longest = AutoTokenizer.from_pretrained(str(model)), int(config.data.max_response_length)
    steps, every = int(config.trainer.total_training_steps), max(1, int(config.trainer.test_freq))
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    how = f"verl's own validation, {f'temperature {sampling.temperature:g}' if sampling.do_sample else 'greedy'}"
    for step in sample_steps(steps, every):
        logged = _lines(Path(config.trainer.validation_data_dir) / f"{step}.jsonl")
        if not logged:  # of another attempt
            continue
        found = {at: place_of(row["prompt"], [one["input"] for one in logged]) for at, row in enumerate(rows)}
        samples = [
            _sample(at, rows[at]["prompt"], logged[place], tokenizer, longest, rewards)
            for at, place in found.items()
            if place is not None
        ]
        missing = ", ".join(str(at) for at, place in found.items() if place is None)
        problem = f"verl's validation has no prompt of row {missing}" if missing else None
        write_samples(folder / SAMPLES, step, steps, how, samples, problem)


def _lines(file: Path) -> list[dict[str, Any]]:
    text = retry_io(lambda: file.read_text(encoding="utf-8") if exists(file) else "", "the attempt's files")
    return [json.loads(line) for line in text.splitlines()]


def _sample(
    at: int, prompt: Any, line: Mapping[str, Any], tokenizer: Any, longest: int, rewards: Sequence[str]
) -> Sample:
    # verl logs no token counts: these are the text's tokens, without the end token.
    tokens = len(tokenizer(line["output"], add_special_tokens=False)["input_ids"])
    values = {name: line[name] for name in rewards if name in line}
    return sample(at, prompt, line["output"], tokens=tokens, cut_off=tokens >= longest - 1, rewards=values)


def place_of(prompt: Sequence[Mapping[str, Any]], inputs: Sequence[str]) -> int | None:
    """The index of a conversation among verl's decoded prompts, which are in random order; None if it is missing.

    The chat template adds text, so it is the shortest prompt that contains all messages.
    """
    parts = [str(message["content"]).strip() for message in prompt]
    places = [at for at, text in enumerate(inputs) if all(part in text for part in parts)]
    return min(places, key=lambda at: len(inputs[at]), default=None)
