"""Replays completions of given lengths with transformers; a batch runs until its longest completion ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList


class _OwnLengths(StoppingCriteria):  # type: ignore[misc]
    """Each row ends at its own length; further tokens are cut off."""

    def __init__(self, start: int, lengths: Sequence[int], device: Any) -> None:
        self._ends = start + torch.tensor(list(lengths), device=device)

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return self._ends <= input_ids.shape[1]


class TransformersReplay:
    """The policy itself generates, without a second copy of the weights."""

    sleeps = False

    def __init__(self, policy: Any, settings: Mapping[str, Any]) -> None:
        self._policy = policy
        self._sampling = {"temperature": settings["temperature"], "top_p": settings["top_p"], "top_k": 0}
        self._pad = policy.config.eos_token_id
        self._pad = self._pad[0] if isinstance(self._pad, list) else self._pad or 0
        # Without the checkpoint's settings: its end token would end completions early.
        policy.generation_config = GenerationConfig(pad_token_id=self._pad)

    def generate(self, prompts: Sequence[list[int]], lengths: Sequence[int], greedy: bool = False) -> list[list[int]]:
        start, device = max(map(len, prompts)), self._policy.device
        rows = [[self._pad] * (start - len(ids)) + ids for ids in prompts]
        mask = [[0] * (start - len(ids)) + [1] * len(ids) for ids in prompts]
        sampling = {"do_sample": False} if greedy else {"do_sample": True, **self._sampling}
        with torch.no_grad():
            output = self._policy.generate(
                torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                generation_config=GenerationConfig(pad_token_id=self._pad, max_new_tokens=max(lengths), **sampling),
                stopping_criteria=StoppingCriteriaList([_OwnLengths(start, lengths, device)]),
            )
        return [row[start : start + length].tolist() for row, length in zip(output, lengths, strict=True)]

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Nothing to do: the policy is the engine."""

    def sleep(self) -> None:
        """Nothing to do: it has no own memory."""

    def wake(self) -> None:
        """Nothing to do: it has no own memory."""

    def settings(self) -> dict[str, Any]:
        return {
            "name": "transformers",
            "dtype": str(self._policy.dtype).removeprefix("torch."),
            "attention": self._policy.config._attn_implementation,
        }

    def close(self) -> None:
        """Nothing to do: it has no processes."""


def build(model: Path, policy: Any, settings: Mapping[str, Any], threads: int, log: Path) -> TransformersReplay:
    return TransformersReplay(policy, settings)
