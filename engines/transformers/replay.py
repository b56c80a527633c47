"""transformers' own generation alone, on completions of given lengths: the batch runs on until the longest is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from common.errors import UserError

STARTS_ITS_SHARDS = False


class _OwnLengths(StoppingCriteria):  # type: ignore[misc]
    """Each row is done at its own length; what it writes beyond is cut off."""

    def __init__(self, start: int, lengths: Sequence[int], device: Any) -> None:
        self._ends = start + torch.tensor(list(lengths), device=device)

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return self._ends <= input_ids.shape[1]


class TransformersReplay:
    """The policy itself generates: there is no second copy of the weights, and nothing to hand over."""

    sleeps = False

    def __init__(self, policy: Any, settings: Mapping[str, Any]) -> None:
        if settings["engine"]:
            raise UserError(
                f"options.engine of a replay with transformers has no settings (got {', '.join(settings['engine'])})"
            )
        self._policy = policy
        self._words = {"temperature": settings["temperature"], "top_p": settings["top_p"], "top_k": 0}
        self._pad = policy.config.eos_token_id
        self._pad = self._pad[0] if isinstance(self._pad, list) else self._pad or 0
        # Nothing of the checkpoint's: its end of text would end a completion early.
        policy.generation_config = GenerationConfig(pad_token_id=self._pad)

    def generate(self, prompts: Sequence[list[int]], lengths: Sequence[int], greedy: bool = False) -> list[list[int]]:
        start, device = max(map(len, prompts)), self._policy.device
        rows = [[self._pad] * (start - len(ids)) + ids for ids in prompts]
        seen = [[0] * (start - len(ids)) + [1] * len(ids) for ids in prompts]
        sampling = {"do_sample": False} if greedy else {"do_sample": True, **self._words}
        with torch.no_grad():
            made = self._policy.generate(
                torch.tensor(rows, device=device),
                attention_mask=torch.tensor(seen, device=device),
                generation_config=GenerationConfig(pad_token_id=self._pad, max_new_tokens=max(lengths), **sampling),
                stopping_criteria=StoppingCriteriaList([_OwnLengths(start, lengths, device)]),
            )
        return [row[start : start + length].tolist() for row, length in zip(made, lengths, strict=True)]

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Nothing: the policy is the engine."""

    def sleep(self) -> None:
        """Nothing: it has no memory of its own."""

    def wake(self) -> None:
        """Nothing: it has no memory of its own."""

    def settings(self) -> dict[str, Any]:
        return {
            "name": "transformers",
            "dtype": str(self._policy.dtype).removeprefix("torch."),
            "attention": self._policy.config._attn_implementation,
        }

    def close(self) -> None:
        """Nothing: it has no processes."""


def build(model: Path, policy: Any, settings: Mapping[str, Any], threads: int) -> TransformersReplay:
    return TransformersReplay(policy, settings)
