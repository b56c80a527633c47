"""Gives the rewards by name, as plain functions of text and as TRL calls them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common.errors import UserError
from node.equality import equal
from node.exit_codes import nearest
from node.phi4_reward import Phi4

Completion = str | Sequence[Mapping[str, Any]]
RewardFunction = Callable[..., list[float]]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_FORMAT = re.compile(r"\s*<think>(.*?)</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL)
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def accuracy(text: str, ground_truth: str) -> float:
    """1.0 if the answer in a completion equals the ground truth, else 0.0.

    The answer is what stands in the last `<answer>…</answer>`, or else the whole completion. math_verify compares
    them as mathematics; a ground truth that it cannot parse is compared as text.
    """
    tagged = _ANSWER.findall(text)
    answer = tagged[-1].strip() if tagged else text.strip()
    return float(answer == ground_truth.strip() or equal(ground_truth, answer))


def format_match(text: str) -> float:
    """1.0 if a completion is `<think>…</think><answer>…</answer>` and nothing else, each tag once, else 0.0."""
    once = all(text.count(tag) == 1 for tag in _TAGS)
    return float(once and _FORMAT.fullmatch(text) is not None)


def length_near(text: str, target: float = 30.0, alpha: float = 0.15) -> float:
    """exp(-alpha · |characters - target|): 1.0 at the target length, falling on both sides."""
    return math.exp(-alpha * abs(len(text) - target))


def completion_text(completion: Completion) -> str:
    """The text of a completion, be it a string or a conversation of `{role, content}`."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion)


def _accuracy(options: Mapping[str, float]) -> RewardFunction:
    accuracy("0", "1")  # its process starts here, not in the first step's time

    def reward(completions: Sequence[Completion], reward_model: Sequence[Mapping[str, Any]], **_: Any) -> list[float]:
        pairs = zip(completions, reward_model, strict=True)
        return [accuracy(completion_text(made), str(row["ground_truth"])) for made, row in pairs]

    return reward


def _format(options: Mapping[str, float]) -> RewardFunction:
    def reward(completions: Sequence[Completion], **_: Any) -> list[float]:
        return [format_match(completion_text(made)) for made in completions]

    return reward


def _length(options: Mapping[str, float]) -> RewardFunction:
    def reward(completions: Sequence[Completion], **_: Any) -> list[float]:
        return [length_near(completion_text(made), **options) for made in completions]

    return reward


def _phi4(options: Mapping[str, float]) -> RewardFunction:
    phi4 = Phi4(**options)  # type: ignore[arg-type]
    phi4.accuracy("<think></think>\\boxed{0}", 1, "1", complete=True)  # as in _accuracy

    def reward(
        completions: Sequence[Completion],
        reward_model: Sequence[Mapping[str, Any]],
        completion_ids: Sequence[Sequence[int]],
        complete: Sequence[bool] | None = None,
        **_: Any,
    ) -> list[float]:
        ended = complete or [len(ids) < phi4.max_response_length for ids in completion_ids]
        rows = zip(completions, completion_ids, ended, reward_model, strict=True)
        return [
            phi4.score(completion_text(made), ids, row.get("ground_truth"), complete=whole)
            for made, ids, whole, row in rows
        ]

    return reward


# name -> (how it is made, which options it takes)
_REWARDS: dict[str, tuple[Callable[[Mapping[str, float]], RewardFunction], tuple[str, ...]]] = {
    "accuracy": (_accuracy, ()),
    "format": (_format, ()),
    "length": (_length, ("target", "alpha")),
    "phi4": (_phi4, ("max_response_length", "positive_from", "negative_to", "ngram", "ngram_threshold")),
}
COUNT_TOKENS = frozenset({"phi4"})
"""Rewards that need a completion's token ids, not its text alone."""


def reward_functions(
    rewards: Sequence[Mapping[str, Any]], max_response_length: int | None = None
) -> list[RewardFunction]:
    """The functions that TRL calls, in order, for `{name, weight, options}` of a workload.

    `max_response_length` is the workload's: a reward that has such an option uses it where the option is not given.

    Each takes completions and the data's columns, and returns one float per completion; its `__name__` is the
    reward's name, under which TRL logs it (`rewards/accuracy/mean`). Raises `UserError` for an unknown name or option.
    """
    functions = []
    for reward in rewards:
        name, options = str(reward["name"]), dict(reward.get("options") or {})
        if name not in _REWARDS:
            raise UserError(
                f"workload.rewards has no reward {name!r}; known: {', '.join(_REWARDS)}{nearest(name, _REWARDS)}"
            )
        make, known = _REWARDS[name]
        for option in options:
            if option not in known:
                raise UserError(
                    f"reward {name!r} has no option {option!r}; known: {', '.join(known) or 'none'}"
                    f"{nearest(option, known)}"
                )
        if max_response_length is not None and "max_response_length" in known:
            options.setdefault("max_response_length", max_response_length)
        function = make(options)
        function.__name__ = name
        functions.append(function)
    return functions
