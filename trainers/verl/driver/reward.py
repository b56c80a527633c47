"""Scores a response for verl: verl loads `compute_score` from this file by its path.

Ray starts the processes that call it; they import this repository by the PYTHONPATH of their node's Ray. verl passes
only the text, without special tokens. A reward that counts tokens gets the text's tokens by the run's tokenizer: these
may be a few fewer than were sampled, and the end token is missing, so a response counts as truncated when it has all
but one of the allowed tokens. A prompt is looked up in the run's data by its row.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import read_json
from common.retry import retry_io
from node.built_in_rewards import reward_name
from node.rewards import FAILED, reward_functions

# verl 0.9.1 calls from several threads: the rewards are loaded once, and tokenizers are not made for threads.
_lock = threading.Lock()
_OF_TOKENS = {"token_ids", "cut_off", "completion_ids", "response_token_ids", "is_truncated"}


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    rewards_file: str,
    tokenizer: str | None = None,
    max_response_length: int | None = None,
    **_: Any,
) -> dict[str, float]:
    """`score`, the weighted sum of a workload's rewards, and each reward under its name.

    The last three arguments come from verl's `reward_kwargs`: the file with the workload's rewards and the data, the
    folder of the tokenizer, and the longest response in tokens. A reward without a value is NaN and is left out of the
    score.
    """
    with _lock:
        loaded = _loaded(Path(rewards_file), tokenizer, max_response_length)
    row = {"data_source": data_source, "extra_info": _plain(extra_info or {})}
    values = loaded.values(solution_str, row | {"reward_model": {"ground_truth": ground_truth}})
    score = sum(weight * values[name] for name, weight in loaded.weights.items() if not math.isnan(values[name]))
    return {"score": score, **values}


class _Rewards:
    """The rewards of one workload, ready to call."""

    def __init__(self, file: Path, tokenizer: str | None, longest: int | None) -> None:
        workload = retry_io(lambda: read_json(file), "the attempt's files")
        failures = file.with_name("reward_failures.jsonl")
        self.weights = {reward_name(reward): float(reward.get("weight", 1.0)) for reward in workload["rewards"]}
        self._functions = reward_functions(workload["rewards"], longest, failures=failures)
        self._longest = math.inf if longest is None else longest
        takes = frozenset[str]().union(*(function.takes for function in self._functions))
        self._prompts = _prompts_of(tuple(workload["data"])) if takes & {"prompts", "messages"} else {}
        self._tokenizer: Any = None
        if takes & _OF_TOKENS:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(tokenizer)

    def values(self, text: str, row: Mapping[str, Any]) -> dict[str, float]:
        """Each reward of one response, by name."""
        columns: dict[str, Any] = {"completions": [text], **{name: [value] for name, value in row.items()}}
        columns["prompts"] = [self._prompts.get(_key(row["extra_info"]))]
        if self._tokenizer is not None:
            with _lock:
                ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            columns |= {"completion_ids": [ids], "complete": [len(ids) < self._longest - 1]}
        values: dict[str, float] = {}
        for function in self._functions:
            failed: dict[str, float] = {}
            (value,) = function(**columns, log_metric=failed.__setitem__)
            values[function.__name__] = math.nan if value is None else value
            values |= {f"{function.__name__}{FAILED}": count for count in failed.values()}
        return values


def _prompts_of(files: Sequence[str]) -> dict[tuple[str, int], Any]:
    """The prompts of prepared data, by split and row."""
    import pyarrow.parquet as pq

    rows = [row for file in files for row in pq.read_table(file, columns=["prompt", "extra_info"]).to_pylist()]
    return {_key(row["extra_info"]): row["prompt"] for row in rows}


def _key(extra_info: Mapping[str, Any]) -> tuple[str, int]:
    return str(extra_info.get("split")), int(extra_info.get("index", -1))


_loaded = functools.cache(_Rewards)


def _plain(value: Any) -> Any:
    """OmegaConf's containers and numpy's numbers as plain Python values."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
