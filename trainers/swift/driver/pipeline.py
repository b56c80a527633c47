"""Builds ms-swift's GRPO trainer on prepared inputs, with the same prompts, completions and rewards as in TRL."""

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
from trainers.swift import hooks

# The data's columns, and the function that logs a reward's counts.
_PASSED = ("data_source", "reward_model", "extra_info", "log_metric")
_SCHEDULER = "multi_turn_scheduler"
# Replaces a turn's tokens while the chat template renders the text around them (Unicode's private use area).
_MARK = "\ue000{}\ue001"


def run(arguments: Any, data: Path, rewards: Sequence[RewardFunction], train: Callable[[Any], None]) -> None:
    """Load model and data as ms-swift does, and call `train` with its trainer."""
    with_solution = bool(arguments.multi_turn_scheduler)
    with importing():
        base: Any = hooks.PIPELINE.get()
        from transformers.utils import logging

    # Its methods are those of the rows DATASET, PREPARE_TEMPLATE and TRAINER_ARGUMENTS.
    class Pipeline(base):  # type: ignore[misc]
        def _get_dataset(self) -> tuple[Any, None]:
            # swift would shuffle the rows again with its own seed.
            return _rows(data, with_solution), None

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


def _rows(data: Path, with_solution: bool) -> Any:
    """The data's rows; ms-swift's own schedulers need the ground truth as `solution`."""
    import pyarrow.parquet as pq
    from datasets import Dataset

    rows = [{"messages": row.pop("prompt"), **row} for row in pq.read_table(data).to_pylist()]
    for row in rows if with_solution else ():
        row["solution"] = row["reward_model"]["ground_truth"]
    return Dataset.from_list(rows)


def with_scheduler(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings with a user's scheduler registered in ms-swift and replaced by its name.

    `UserError` for a file that does not load, and for a class that is no scheduler.
    """
    own = trainer_args.get(_SCHEDULER)
    if not isinstance(own, Mapping):
        return dict(trainer_args)
    with importing():
        scheduler = hooks.SCHEDULER.get()

    name = f"{own['source']}: {own['class']}"
    try:
        made: Any = load_function(own["source"], own["code"], own["class"])
    except Problem as problem:
        raise UserError(f"options.{_SCHEDULER}: {problem}; correct the file") from problem
    if not (issubclass(made, scheduler) and hooks.STEP.get(made) is not hooks.STEP.get()):
        raise UserError(
            f"options.{_SCHEDULER}: {name} must inherit from {hooks.SCHEDULER.module}.{hooks.SCHEDULER.name} and "
            "define step; correct the file"
        )
    hooks.SCHEDULERS.get()[name] = made
    return {**trainer_args, _SCHEDULER: name}


def encode_with_chat_template(template: type[Any]) -> None:
    """Make a template insert each turn's own tokens into the text that the chat template renders for the rest.

    ms-swift 4.6.0 template/base.py _jinja_encode renders the whole conversation, in which completions are lists of
    token ids: it would train on the text of those lists, and on the prompt. Nothing follows the last turn. An end token
    after an earlier turn is added only if the engine did not generate it.
    """
    if hasattr(template, "rendered_whole"):
        return
    template.rendered_whole = original = hooks.ENCODE.get(template)

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
            more = hooks.SEPARATOR.get(self)(contexts[-1], [behind])
            contexts += more
            scales += [0.0] * len(more)
        if last:
            _add_turn(last["content"], contexts, scales)
        return contexts, scales, 1

    hooks.ENCODE.replace(encode, template)
    # Otherwise an end token is learned that the engine did not generate.
    hooks.ADD_EOS.replace(staticmethod(lambda *args: None), template)


def _is_tokens(content: Any) -> bool:
    return isinstance(content, dict) or (isinstance(content, list) and all(isinstance(one, int) for one in content))


def _add_turn(content: Any, contexts: list[Any], scales: list[float]) -> None:
    """Add a turn's tokens in ms-swift's form: a list, or a list with a mask of the learned ones."""
    ids = content["token_ids"] if isinstance(content, dict) else content
    mask = content["loss_scale"] if isinstance(content, dict) else [1] * len(ids)
    for scale, tokens in groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1]):
        contexts.append([token for token, _ in tokens])
        scales.append(float(scale))


def as_reward(reward: RewardFunction, tokenizer: Any) -> Callable[..., list[float | None]]:
    """A reward in ms-swift's form that gets the same as in TRL: the completion's ids, and their text without special
    tokens (swift's own text has all but the last)."""
    reward.end_ids = frozenset(tokenizer.all_special_ids)

    def scored(completions: Sequence[str], **columns: Any) -> list[float | None]:
        ids = [last_turn(one) for one in columns["response_token_ids"]]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        prompts = [[_as_text(one, tokenizer) for one in messages[:-1]] for messages in columns["messages"]]
        passed = {name: columns[name] for name in _PASSED if name in columns}
        return reward(completions=texts, prompts=prompts, completion_ids=ids, **passed)

    scored.__name__ = reward.__name__
    return scored


def _as_text(message: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """A message of the conversation as text; in ms-swift turns before the last are token ids."""
    if not _is_tokens(message["content"]):
        return dict(message)
    return {**message, "content": tokenizer.decode(message["content"], skip_special_tokens=True)}


def last_turn(ids: Sequence[Any]) -> list[int]:
    """A completion's ids; of its last turn, if swift keeps them by turn."""
    return list(ids[-1] if ids and isinstance(ids[-1], list) else ids)
