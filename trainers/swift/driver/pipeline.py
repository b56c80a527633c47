"""Builds ms-swift's GRPO trainer on prepared inputs, with its prompts, completions and rewards as TRL's."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from common.errors import UserError
from node.hardware import importing
from node.own_reward_process import Problem, load_function
from node.rewards import RewardFunction

# The data's columns, and our way to log beside a reward.
_TOLD = ("data_source", "reward_model", "extra_info", "log_metric")
_SCHEDULER = "multi_turn_scheduler"
# Stands for a turn's tokens while the chat template renders the text around them: of Unicode's private use.
_MARK = "\ue000{}\ue001"


def run(arguments: Any, data: Path, rewards: Sequence[RewardFunction], train: Callable[[Any], None]) -> None:
    """Load model and data as ms-swift does, and hand its trainer to `train`."""
    truths = bool(arguments.multi_turn_scheduler)
    with importing():
        from swift.pipelines.train.rlhf import SwiftRLHF
        from transformers.utils import logging

    class Pipeline(SwiftRLHF):  # type: ignore[misc]
        def _get_dataset(self) -> tuple[Any, None]:
            # Rows as they are: swift would shuffle them once more, by a seed of its own.
            return _rows(data, truths), None

        def _prepare_template(self) -> None:
            super()._prepare_template()
            encode_with_chat_template(type(self.template))

        def _get_trainer_kwargs(self) -> dict[str, Any]:
            functions = [as_reward(reward, self.template.tokenizer) for reward in rewards]
            return {**super()._get_trainer_kwargs(), "reward_funcs": functions}

        def train(self, trainer: Any) -> None:
            train(trainer)

    logging.disable_progress_bar()
    Pipeline(arguments).run()


def _rows(data: Path, truths: bool) -> Any:
    """The data's rows; ms-swift's own schedulers want to know the answer, as `solution`."""
    import pyarrow.parquet as pq
    from datasets import Dataset

    rows = [{"messages": row.pop("prompt"), **row} for row in pq.read_table(data).to_pylist()]
    for row in rows if truths else ():
        row["solution"] = row["reward_model"]["ground_truth"]
    return Dataset.from_list(rows)


def with_scheduler(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings in which a scheduler of the user's has a name, under which ms-swift finds the class then.

    `UserError` for a file that cannot be loaded, and for a class that is no scheduler.
    """
    own = trainer_args.get(_SCHEDULER)
    if not isinstance(own, Mapping):
        return dict(trainer_args)
    with importing():
        from swift.rollout.multi_turn import MultiTurnScheduler, multi_turns

    name = f"{own['source']}: {own['class']}"
    try:
        made: Any = load_function(own["source"], own["code"], own["class"])
    except Problem as problem:
        raise UserError(f"options.{_SCHEDULER}: {problem}; correct the file") from problem
    if not (issubclass(made, MultiTurnScheduler) and made.step is not MultiTurnScheduler.step):
        raise UserError(
            f"options.{_SCHEDULER}: {name} must inherit from swift.rollout.multi_turn.MultiTurnScheduler, and have a "
            "method step; correct the file"
        )
    multi_turns[name] = made
    return {**trainer_args, _SCHEDULER: name}


def encode_with_chat_template(template: type[Any]) -> None:
    """Have a template put each turn's own tokens into what the tokenizer's chat template makes of the rest.

    ms-swift 4.6.0 template/base.py _jinja_encode renders the whole conversation, where a completion is a list of
    token ids by then: it would train on that list's text, and on the prompt. Behind the last turn nothing is added,
    and of an end token that closes an earlier one only what the engine has not written.
    """
    if hasattr(template, "rendered_whole"):
        return
    template.rendered_whole = original = template._jinja_encode

    def encode(self: Any, inputs: Any) -> tuple[list[Any], list[float], int]:
        turns = [_is_tokens(one["content"]) for one in inputs.messages]
        if not any(turns):
            return original(self, inputs)  # type: ignore[no-any-return]
        around = copy.copy(inputs)
        around.messages = [
            {**one, "content": _MARK.format(at)} if turns[at] else one for at, one in enumerate(inputs.messages)
        ]
        last = inputs.messages[-1] if turns[-1] else None
        if last:
            around.messages[-1] = {**last, "content": None}
        (text,), _, _ = original(self, around)
        before, *rest = re.split(_MARK.format(r"(\d+)"), text)
        contexts, scales = [before], [0.0]
        for at, behind in zip(rest[::2], rest[1::2], strict=True):
            _add_turn(inputs.messages[int(at)]["content"], contexts, scales)
            more = self._remove_response_separator_overlap(contexts[-1], [behind])
            contexts += more
            scales += [0.0] * len(more)
        if last:
            _add_turn(last["content"], contexts, scales)
        return contexts, scales, 1

    template._jinja_encode = encode
    # It would have an end token learned that the engine did not write.
    template._add_dynamic_eos = staticmethod(lambda *args: None)


def _is_tokens(content: Any) -> bool:
    return isinstance(content, dict) or (isinstance(content, list) and all(isinstance(one, int) for one in content))


def _add_turn(content: Any, contexts: list[Any], scales: list[float]) -> None:
    """Add a turn's tokens, as ms-swift holds them: a list, or with a mask of those that are learned."""
    ids = content["token_ids"] if isinstance(content, dict) else content
    mask = content["loss_scale"] if isinstance(content, dict) else [1] * len(ids)
    for scale, some in groupby(zip(ids, mask, strict=True), key=lambda one: one[1]):
        contexts.append([token for token, _ in some])
        scales.append(float(scale))


def as_reward(reward: RewardFunction, tokenizer: Any) -> Callable[..., list[float | None]]:
    """A reward as ms-swift calls it, with what TRL hands over: the completion's ids, and their text without special
    tokens (swift's own text holds all but the last)."""
    reward.end_ids = frozenset(tokenizer.all_special_ids)

    def scored(completions: Sequence[str], **columns: Any) -> list[float | None]:
        ids = [last_turn(one) for one in columns["response_token_ids"]]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        prompts = [[_as_text(one, tokenizer) for one in messages[:-1]] for messages in columns["messages"]]
        told = {name: columns[name] for name in _TOLD if name in columns}
        return reward(completions=texts, prompts=prompts, completion_ids=ids, **told)

    scored.__name__ = reward.__name__
    return scored


def _as_text(message: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """A message of the conversation; ms-swift holds the turns before the last one as token ids."""
    if not _is_tokens(message["content"]):
        return dict(message)
    return {**message, "content": tokenizer.decode(message["content"], skip_special_tokens=True)}


def last_turn(ids: Sequence[Any]) -> list[int]:
    """A completion's ids, of its last turn where swift keeps them by turn."""
    return list(ids[-1] if ids and isinstance(ids[-1], list) else ids)
