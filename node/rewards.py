"""Scores completions with a workload's rewards: built-in ones by name, functions of a user's file, reward models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from node.built_in_rewards import BUILT_IN, Response, Score
from node.own_reward import RewardProgram
from node.reward_model import OWN_PROCESS, Classifier, model_key
from node.scorer import RemoteClassifier

FAILED = "_failed"
"""Ends the name under which verl is told whether a user's function failed on a response."""

Completion = str | Sequence[Mapping[str, Any]]


def completion_text(completion: Completion) -> str:
    """The text of a completion, be it a string or a conversation of `{role, content}`."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content") or "") for message in completion)


class RewardFunction:
    """One reward of a workload, as TRL calls it and as verl's `compute_score` does.

    `__name__` is the name under which trainers log it (`rewards/<name>/mean`). `end_ids` are the tokenizer's end
    tokens: the last one of a completion is no part of its tokens, and tells that it ended by itself.
    """

    def __init__(
        self, name: str, score: Score | RewardProgram | Classifier, longest: int | None, *, takes: Sequence[str]
    ) -> None:
        self.__name__ = name
        self.takes = frozenset(takes)
        self.end_ids: frozenset[int] = frozenset()
        self.callers = 1
        """Processes that each score a part of a batch with it: a trainer logs the mean over them."""
        self._score, self._longest = score, longest

    def __call__(
        self,
        completions: Sequence[Completion],
        prompts: Sequence[Any] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        complete: Sequence[bool] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        trained: bool = True,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """One value for each completion; None where a function of the user's or a reward model gives none for it.

        Samples of the report are not `trained` on: a failure there is no event of the run.
        """
        count = len(completions)
        ids = completion_ids or [()] * count
        ended = complete or [self._ended(tokens) for tokens in ids]
        responses = [
            Response(
                text=completion_text(completions[at]),
                tokens=self._own_tokens(ids[at]),
                complete=ended[at],
                prompt=prompts[at] if prompts else None,
                row=_row({name: column[at] for name, column in columns.items() if _is_column(column, count)}),
            )
            for at in range(count)
        ]
        if not isinstance(self._score, RewardProgram | Classifier):
            return [self._score(response) for response in responses]
        values, failed = self._score.score(responses, trained=trained)
        counted = {"failed": failed}
        if isinstance(self._score, Classifier):
            counted["truncated"] = self._score.truncated
        if log_metric is not None:
            for what, number in counted.items():
                log_metric(f"rewards/{self.__name__}/{what}", float(number * self.callers))
        return values

    def ready(self, device: Any) -> None:
        """Load a reward model, beside a trainer on that device: not in the first step's time."""
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
    """TRL hands over its own state and loggers beside the data's columns."""
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == count


def _row(columns: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the prepared data as rewards see it: what every row has, and the workload's further columns."""
    nested = {**(columns.get("extra_info") or {}), **(columns.get("reward_model") or {})}
    nested.pop("style", None)
    further: dict[str, Any] = json.loads(nested.pop("columns", None) or "{}")
    return {**{name: value for name, value in columns.items() if name == "data_source"}, **nested, **further}


def reward_functions(
    rewards: Sequence[Mapping[str, Any]],
    max_response_length: int | None = None,
    *,
    failures: Path | None = None,
    models: Mapping[str, Path] | None = None,
) -> list[RewardFunction]:
    """The functions, in order, for a workload's rewards: `{name, weight, options}`, one of the user's own, or a model.

    `max_response_length` is the workload's: a reward that has such an option uses it where the option is not given.
    `failures` is the file that tells of each completion on which a user's function fails, `models` the folders of
    reward models. Raises `UserError` for a file or a model that cannot be loaded.
    """
    made = []
    for reward in rewards:
        if "source" in reward:
            own = RewardProgram(reward, failures)
            made.append(RewardFunction(str(reward["function"]), own, max_response_length, takes=own.takes))
        elif "model" in reward:
            made.append(_of_a_model(reward, max_response_length, models or {}))
        else:
            made.append(_built_in(reward, max_response_length))
    return made


def _built_in(reward: Mapping[str, Any], longest: int | None) -> RewardFunction:
    name, options = str(reward["name"]), dict(reward.get("options") or {})
    found = BUILT_IN[name]
    if longest is not None and "max_response_length" in found.options:
        options.setdefault("max_response_length", longest)
    # phi4 alone has a longest response of its own: the article's.
    limit = int(options.get("max_response_length") or found.longest or longest or 0) or None
    return RewardFunction(name, found.make(options), limit, takes=("token_ids",) if found.counts_tokens else ())


def _of_a_model(reward: Mapping[str, Any], longest: int | None, models: Mapping[str, Path]) -> RewardFunction:
    if model_key(reward) not in models:
        raise UserError(
            f"workload.rewards: the reward model {reward['model']} is not among the prepared inputs; start snakemake "
            "again, which prepares them"
        )
    folder = models[model_key(reward)]
    model = Classifier(reward, folder) if reward.get("device") != OWN_PROCESS else RemoteClassifier(reward, folder)
    return RewardFunction(model.name, model, longest, takes=model.takes)


def reward_name(reward: Mapping[str, Any]) -> str:
    """The name under which a reward is logged."""
    return str(reward["function"] if "source" in reward else reward["name"])
