"""Builds ms-swift's GRPO trainer on prepared inputs, with its prompts, completions and rewards as TRL's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node.hardware import importing
from node.rewards import RewardFunction

# The data's columns, and our way to log beside a reward.
_TOLD = ("data_source", "reward_model", "extra_info", "log_metric")


def run(arguments: Any, data: Path, rewards: Sequence[RewardFunction], train: Callable[[Any], None]) -> None:
    """Load model and data as ms-swift does, and hand its trainer to `train`."""
    with importing():
        from swift.pipelines.train.rlhf import SwiftRLHF
        from transformers.utils import logging

    class Pipeline(SwiftRLHF):  # type: ignore[misc]
        def _get_dataset(self) -> tuple[Any, None]:
            # Rows as they are: swift would shuffle them once more, by a seed of its own.
            return _rows(data), None

        def _prepare_template(self) -> None:
            super()._prepare_template()
            _encode_with_chat_template(type(self.template))

        def _get_trainer_kwargs(self) -> dict[str, Any]:
            functions = [as_reward(reward, self.template.tokenizer) for reward in rewards]
            return {**super()._get_trainer_kwargs(), "reward_funcs": functions}

        def train(self, trainer: Any) -> None:
            train(trainer)

    logging.disable_progress_bar()
    Pipeline(arguments).run()


def _rows(data: Path) -> Any:
    import pyarrow.parquet as pq
    from datasets import Dataset

    return Dataset.from_list([{"messages": row.pop("prompt"), **row} for row in pq.read_table(data).to_pylist()])


def _encode_with_chat_template(template: type[Any]) -> None:
    """Have a template put a completion's own tokens behind the prompt of the tokenizer's chat template.

    ms-swift 4.6.0 template/base.py _jinja_encode renders the whole conversation, where a completion is a list of
    token ids by then: it would train on that list's text, and on the prompt.
    """
    if hasattr(template, "rendered_whole"):
        return
    template.rendered_whole = original = template._jinja_encode

    def encode(self: Any, inputs: Any) -> tuple[list[Any], list[float], int]:
        last = inputs.messages[-1]
        if last["role"] != "assistant" or not isinstance(last["content"], list):
            return original(self, inputs)  # type: ignore[no-any-return]
        prompt = copy.copy(inputs)
        prompt.messages = [*inputs.messages[:-1], {**last, "content": None}]
        contexts, _, _ = original(self, prompt)
        return [*contexts, last["content"]], [*(0.0 for _ in contexts), 1.0], 1

    template._jinja_encode = encode


def as_reward(reward: RewardFunction, tokenizer: Any) -> Callable[..., list[float | None]]:
    """A reward as ms-swift calls it, with what TRL hands over: the completion's ids, and their text without special
    tokens (swift's own text holds all but the last)."""
    reward.end_ids = frozenset(tokenizer.all_special_ids)

    def scored(completions: Sequence[str], **columns: Any) -> list[float | None]:
        ids = [last_turn(one) for one in columns["response_token_ids"]]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        prompts = [list(messages[:-1]) for messages in columns["messages"]]
        told = {name: columns[name] for name in _TOLD if name in columns}
        return reward(completions=texts, prompts=prompts, completion_ids=ids, **told)

    scored.__name__ = reward.__name__
    return scored


def last_turn(ids: Sequence[Any]) -> list[int]:
    """A completion's ids, of its last turn where swift keeps them by turn."""
    return list(ids[-1] if ids and isinstance(ids[-1], list) else ids)
