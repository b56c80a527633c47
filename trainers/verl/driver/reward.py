"""What does verl call to score a response? `compute_score`, which verl loads from this file by its path.

Ray starts the processes that call it: they find `workflow` by the PYTHONPATH that their node's Ray was started with.
verl hands over the text alone, with special tokens left out. A reward that counts tokens gets those of the text, by
the run's own tokenizer: these may be a few fewer than were sampled, and the end token is not among them, so that a
response counts as cut when it fills all but one of the places.
"""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from node.rewards import COUNT_TOKENS, reward_functions

# verl calls from a pool of threads; neither tokenizers nor the order of sums shall depend on which is first.
_lock = threading.Lock()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    rewards: Sequence[Mapping[str, Any]],
    tokenizer: str | None = None,
    max_response_length: int | None = None,
    **_: Any,
) -> dict[str, float]:
    """`score`, the weighted sum of a workload's rewards, and each of them under its name.

    The last three come from verl's `reward_kwargs`: the workload's `rewards`, the folder of the run's tokenizer, and
    the longest response in tokens.
    """
    with _lock:
        made = _made(json.dumps([_plain(rewards), tokenizer, max_response_length]))
        values = made.values(solution_str, {"ground_truth": ground_truth})
    return {"score": sum(made.weights[name] * value for name, value in values.items()), **values}


class _Made:
    """The rewards of one workload, ready to be called."""

    def __init__(self, rewards: list[dict[str, Any]], tokenizer: str | None, longest: int | None) -> None:
        self.weights = {str(reward["name"]): float(reward.get("weight", 1.0)) for reward in rewards}
        self._functions = reward_functions(rewards, longest)
        self._longest = math.inf if longest is None else longest
        self._tokenizer: Any = None
        if COUNT_TOKENS & set(self.weights):
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(tokenizer)

    def values(self, text: str, row: Mapping[str, Any]) -> dict[str, float]:
        """Each reward of one response, by name."""
        asked: dict[str, Any] = {"completions": [text], "reward_model": [row]}
        if self._tokenizer is not None:
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            asked |= {"completion_ids": [ids], "complete": [len(ids) < self._longest - 1]}
        return {function.__name__: function(**asked)[0] for function in self._functions}


@functools.cache
def _made(settings: str) -> _Made:
    return _Made(*json.loads(settings))


def _plain(value: Any) -> Any:
    """OmegaConf's containers as Python's own."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
