"""Scores completions with a workload's rewards: built-in functions, the user's functions and reward models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from node.built_in_rewards import BUILT_IN, Response, Score, reward_name
from node.own_reward import RewardProgram
from node.reward_model import Classifier, model_key

FAILED = "_failed"
"""Suffix of verl's column that reports whether a user's function failed on a response."""

Completion = str | Sequence[Mapping[str, Any]]


def completion_text(completion: Completion) -> str:
    """The text of a completion, which is a string or a conversation of `{role, content}`."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion)


class RewardFunction:
    """One reward of a workload, callable by TRL and by verl's `compute_score`.

    Trainers log it as `rewards/<__name__>/mean`. `end_ids` are the tokenizer's end tokens: a completion's last one is
    not part of its tokens, and shows that it is complete.
    """

    def __init__(
        self, name: str, score: Score | RewardProgram | Classifier, longest: int | None, *, takes: Sequence[str]
    ) -> None:
        self.__name__ = name
        self.takes = frozenset(takes)
        self.end_ids: frozenset[int] = frozenset()
        self.callers = 1
        """Number of processes that each score a part of a batch; trainers log the mean over them."""
        self.last: list[tuple[Response, float | None]] = []
        """The responses of the last call with their values, for the samples."""
        self._score, self._longest = score, longest

    def __call__(
        self,
        completions: Sequence[Completion],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        complete: Sequence[bool] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """One value for each completion; None if a user's function or a reward model fails on it."""
        count = len(completions)
        ids = completion_ids or [()] * count
        ended = complete or [self._ended(tokens) for tokens in ids]
        responses = [
            Response(
                text=completion_text(completions[at]),
                tokens=self._own_tokens(ids[at]),
                complete=ended[at],
                prompt=prompts[at] if prompts else None,
                row=row_of({name: column[at] for name, column in columns.items() if _is_column(column, count)}),
            )
            for at in range(count)
        ]
        values, counts = self._scored(responses)
        self.last = list(zip(responses, values, strict=True))
        if log_metric is not None:
            for name, count in counts.items():
                log_metric(f"rewards/{self.__name__}/{name}", float(count * self.callers))
        return values

    def _scored(self, responses: Sequence[Response]) -> tuple[list[float | None], dict[str, int]]:
        """The values, and counts to log."""
        if not isinstance(self._score, RewardProgram | Classifier):
            return [self._score(response) for response in responses], {}
        values, failed = self._score.score(responses)
        counts = {"failed": failed}
        if isinstance(self._score, Classifier):
            counts["truncated"] = self._score.truncated
        return values, counts

    def ready(self, device: Any) -> None:
        """Load a reward model onto the trainer's device, before the first step."""
        if isinstance(self._score, Classifier):
            self._score.ready(device)

    def close(self) -> None:
        """End the process of a user's function."""
        if isinstance(self._score, RewardProgram):
            self._score.close()

    def _ended(self, tokens: Sequence[int]) -> bool:
        at_end = bool(tokens) and tokens[-1] in self.end_ids
        return at_end or self._longest is None or len(tokens) < self._longest

    def _own_tokens(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[:-1] if tokens and tokens[-1] in self.end_ids else tokens


def _is_column(value: Any, count: int) -> bool:
    """TRL also passes its state and loggers as columns."""
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == count


def row_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the prepared data for rewards: the common values and the workload's extra columns."""
    nested = {**(columns.get("extra_info") or {}), **(columns.get("reward_model") or {})}
    nested.pop("style", None)
    extra: dict[str, Any] = json.loads(nested.pop("columns", None) or "{}")
    return {**{name: value for name, value in columns.items() if name == "data_source"}, **nested, **extra}


def reward_functions(
    rewards: Sequence[Mapping[str, Any]],
    max_response_length: int | None = None,
    *,
    failures: Path | None = None,
    models: Mapping[str, Path] | None = None,
) -> list[RewardFunction]:
    """The functions of a workload's rewards, in order.

    `max_response_length` is the default of rewards with that option. `failures` is the file for completions on which a
    user's function fails, `models` the folders of reward models. `UserError` if a file or model cannot be loaded.
    """
    functions = []
    for reward in rewards:
        name = reward_name(reward)
        if "source" in reward:
            own = RewardProgram(reward, failures)
            functions.append(RewardFunction(name, own, max_response_length, takes=own.takes))
        elif "model" in reward:
            model = Classifier(reward, _model_folder(reward, models or {}))
            functions.append(RewardFunction(name, model, max_response_length, takes=model.takes))
        else:
            functions.append(_built_in(name, reward, max_response_length))
    return functions


def _built_in(name: str, reward: Mapping[str, Any], longest: int | None) -> RewardFunction:
    options, built_in = dict(reward.get("options") or {}), BUILT_IN[name]
    if longest is not None and "max_response_length" in built_in.options:
        options.setdefault("max_response_length", longest)
    # Only phi4 has its own longest response, from the article.
    limit = int(options.get("max_response_length") or built_in.longest or longest or 0) or None
    return RewardFunction(name, built_in.make(options), limit, takes=("token_ids",) if built_in.counts_tokens else ())


def _model_folder(reward: Mapping[str, Any], models: Mapping[str, Path]) -> Path:
    if model_key(reward) not in models:
        raise UserError(
            f"workload.rewards: the reward model {reward['model']} is not among the prepared inputs; start snakemake "
            "again to prepare them"
        )
    return models[model_key(reward)]
