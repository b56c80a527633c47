"""Records the log-probability of each token that transformers samples, one step of decoding at a time.

transformers' own `output_logits` keeps the logits of all tokens: a gigabyte for two thousand tokens of a large
vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class SampledLogProbs:
    """A logits processor that changes nothing; sampling must be unfiltered.

    transformers calls it with raw logits, before its temperature (generation/utils.py, `_get_logits_processor`).
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._last: Any = None
        self._taken: list[Any] = []

    def __call__(self, ids: Any, logits: Any) -> Any:
        """Take the token that was sampled from the last logits, and keep these (batch x vocabulary)."""
        self._take(ids[:, -1:])
        self._last = (logits / self._temperature).log_softmax(dim=-1)
        return logits

    def _take(self, tokens: Any) -> None:
        if self._last is not None:
            self._taken.append(self._last.gather(1, tokens))

    def finish(self, ids: Any) -> None:
        """Take the last token of what `generate` returns."""
        self._take(ids[:, -1:])
        self._last = None

    def rows(self, completions: Iterable[Sequence[int]]) -> list[list[float]]:
        """The log-probabilities of each completion's tokens; a row of the batch is padded behind them."""
        import torch

        rows = torch.cat(self._taken, dim=1).tolist()
        return [row[: len(completion)] for completion, row in zip(completions, rows, strict=True)]


@contextmanager
def recording(model: Any, temperature: float) -> Iterator[SampledLogProbs]:
    """The context in which one `model.generate` records its tokens' log-probabilities."""
    recorder, generate = SampledLogProbs(temperature), model.generate

    @functools.wraps(generate)  # ms-swift looks at its parameters
    def recorded(*args: Any, **kwargs: Any) -> Any:
        made = generate(*args, logits_processor=[recorder], **kwargs)
        recorder.finish(getattr(made, "sequences", made))
        return made

    model.generate = recorded
    try:
        yield recorder
    finally:
        del model.generate


@contextmanager
def recording_batch(model: Any) -> Iterator[list[list[float]]]:
    """The context in which one `model.generate_batch` (continuous batching) keeps what it returns with its tokens.

    Its configuration has `return_logprobs`; they are at the temperature of sampling.
    """
    rows: list[list[float]] = []
    generate = model.generate_batch

    def recorded(*args: Any, **kwargs: Any) -> Any:
        made = generate(*args, **kwargs)
        rows.extend(output.logprobs for output in made.values())
        return made

    model.generate_batch = recorded
    try:
        yield rows
    finally:
        del model.generate_batch
