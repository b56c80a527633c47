"""Writes sample completions: a line of samples.jsonl at the start, halfway and at the end of training.

Nothing is generated for them. Under transformers' Trainer they are completions of the step's own batch, as the rewards
have scored them; verl's validation logs its own (trainers/verl/driver/samples.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.contracts import Sample, SamplesLine
from common.retry import append_json_line

if TYPE_CHECKING:
    from node.rewards import RewardFunction

SAMPLES = "samples.jsonl"
MOST_CHARACTERS = 10_000
"""Maximum length of a written message or completion: 32 samples have at most 4 MB."""


def sample_steps(steps: int, every: int = 1) -> tuple[int, ...]:
    """The steps after which samples are taken: 0, about half, and all; the middle one is a multiple of `every`.

    A batch of the training has those of 0 at step 1, whose policy is still the first.
    """
    return tuple(sorted({0, steps // 2 // every * every, steps}))


class StepSamples:
    """Samples from the batches of a training: `samples` of its `workload`, with its `rewards`, in a `folder`."""

    def __init__(self, rewards: Sequence[RewardFunction], workload: Mapping[str, Any], folder: Path) -> None:
        self._rewards, self._path, self._count = rewards, folder / SAMPLES, int(workload["samples"])
        self._how = f"a batch of the training, temperature {float(workload['temperature']):g}"

    def of_step(self, step: int, steps: int) -> list[Sample]:
        """The first completion of each of this process's first prompts, with its rewards; none between the stages."""
        if step not in {max(1, one) for one in sample_steps(steps)}:
            return []
        scored = self._rewards[0].last
        first = {response.row.get("index", at): at for at, (response, _) in reversed(list(enumerate(scored)))}
        return [self._sample(at) for at in sorted(first.values())[: self._count]]

    def _sample(self, at: int) -> Sample:
        scored = self._rewards[0].last
        response, _ = scored[at]
        # Samples must not end a run: a reward that was asked about other completions has no value here.
        same = [reward for reward in self._rewards if len(reward.last) == len(scored)]
        return sample(
            int(response.row.get("index", at)),
            response.prompt or (),
            response.text,
            tokens=len(response.tokens),
            cut_off=not response.complete,
            rewards={reward.__name__: reward.last[at][1] for reward in same},
        )

    def write(self, step: int, steps: int, samples: Sequence[Sample]) -> None:
        """Append the first of all processes' samples as a line."""
        write_samples(self._path, step, steps, self._how, list(samples[: self._count]))


def sample(
    row: int,
    prompt: Sequence[Mapping[str, Any]],
    completion: str,
    *,
    tokens: int,
    cut_off: bool,
    rewards: Mapping[str, float | None],
) -> Sample:
    """A completion for samples.jsonl; a reward that is not finite becomes null."""
    finite = {name: None if v is None or not math.isfinite(v) else float(v) for name, v in rewards.items()}
    return {
        "row": row,
        "prompt": [{key: _text(value) for key, value in message.items()} for message in prompt],
        "completion": _text(completion),
        "characters": len(completion),
        "tokens": tokens,
        "cut_off": cut_off,
        "rewards": finite,
    }


def write_samples(
    path: Path, step: int, steps: int, how: str, samples: list[Sample], problem: str | None = None
) -> None:
    """Append a line of samples."""
    append_json_line(path, SamplesLine(step=step, steps=steps, how=how, problem=problem, samples=samples))


def shorten(text: str, most: int) -> str:
    """A text cut to `most` characters: two thirds from its start, one third from its end with the answer."""
    head = most * 2 // 3
    return text if len(text) <= most else f"{text[:head]} … {text[head - most :]}"


def _text(value: Any) -> str:
    """A shortened text in valid UTF-8: half a surrogate pair becomes a question mark."""
    return shorten(str(value), MOST_CHARACTERS).encode("utf-8", "replace").decode()
