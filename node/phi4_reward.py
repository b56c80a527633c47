"""Computes the reward of Phi-4-reasoning-plus for a long chain of thought, as in the verl article's script.

    reward = 8/13 · accuracy + 1/13 · repetition

    accuracy    -0.5                                              incomplete: cut at the length limit
                -1.0                                              not `<think>…</think>` followed by an answer
                0.5 + 0.25 · (1 + cos(π · min(1, max(0, L - P) / (M - P))))    correct: 1.0 up to P, 0.5 at M
                -0.5 - 0.25 · (1 + cos(π · min(1, L / N)))                     wrong: -1.0 at once, -0.5 from N on
    repetition  -max(frequent / different 5-grams, count of the most frequent one / (L / 5)), at least -1;
                0 if none occurs more than 5 times

L is the response's length, M the maximum (31744), P = 25600 and N = 3702, all in tokens; P and N scale with M. n-grams
are of tokens, so that they exist without spaces.

Differences from the script:
- The script loads a tokenizer from the hub; here the run's token ids count.
- The script limits only the parser's time, with signal.alarm, in the main thread only; see equality.py.
- The script parses with lark, or silently compares text without lark. It lower-cases LaTeX, drops spaces and accepts
  two empty parses. Here math_verify compares, and an empty answer or ground truth is never equal.
- The script accepts `\\boxed` inside the thought, and misreads a brace after a line break (`\\\\}`). Here the answer
  follows the thought.
- The script accepts text before the thought, several thoughts and open tags. It checks the format first, so a response
  that was cut within its thought gets -1.0 instead of -0.5. It also treats M - 1 tokens and an end token as cut.
- The script's repetition has no bound: one endlessly repeated word gives -5.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from common.errors import UserError
from node.equality import equal

MAX_RESPONSE, POSITIVE_FROM, NEGATIVE_TO = 31744, 25600, 3702
ACCURACY_WEIGHT, REPETITION_WEIGHT = 8 / 13, 1 / 13
INCOMPLETE, BAD_FORMAT = -0.5, -1.0
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
_BOXED = re.compile(r"\\boxed\s*\{")


@dataclass(frozen=True)
class Phi4:
    """The reward with its constants in tokens; None: scaled with `max_response_length`."""

    max_response_length: int = MAX_RESPONSE
    positive_from: float | None = None
    negative_to: float | None = None
    ngram: int = 5
    ngram_threshold: int = 5

    def __post_init__(self) -> None:
        longest = self.max_response_length
        for name, value, ok, wanted in (
            ("max_response_length", longest, longest >= 1, "at least 1"),
            ("positive_from", self.long_from, 0 <= self.long_from < longest, f"from 0 to below {longest}"),
            ("negative_to", self.short_to, self.short_to > 0, "above 0"),
            ("ngram", self.ngram, self.ngram >= 1, "at least 1"),
            ("ngram_threshold", self.ngram_threshold, self.ngram_threshold >= 1, "at least 1"),
        ):
            if not ok:
                raise UserError(f"reward phi4: {name} must be {wanted} (got {value}); correct its options")

    @property
    def long_from(self) -> float:
        """The length in tokens from which a correct response gets less."""
        share = self.max_response_length * POSITIVE_FROM / MAX_RESPONSE
        return share if self.positive_from is None else self.positive_from

    @property
    def short_to(self) -> float:
        """The length in tokens up to which a wrong response gets less than -0.5."""
        share = self.max_response_length * NEGATIVE_TO / MAX_RESPONSE
        return share if self.negative_to is None else self.negative_to

    def score(self, text: str, tokens: Sequence[Hashable], ground_truth: object, *, complete: bool) -> float:
        """The reward of a response, from -9/13 to 8/13; `complete`: it was not cut off."""
        return ACCURACY_WEIGHT * self.accuracy(text, len(tokens), ground_truth, complete=complete) + (
            REPETITION_WEIGHT * self.repetition(tokens)
        )

    def accuracy(self, text: str, length: int, ground_truth: object, *, complete: bool) -> float:
        """The accuracy part, scaled by the length: from -1 to 1."""
        if not complete:
            return INCOMPLETE
        answer = answer_part(text)
        if answer is None:
            return BAD_FORMAT
        if is_correct(answer, ground_truth):
            span = self.max_response_length - self.long_from
            return half_cosine(1.0, 0.5, min(1.0, max(0.0, length - self.long_from) / span))
        return half_cosine(-1.0, -0.5, min(1.0, length / self.short_to))

    def repetition(self, tokens: Sequence[Hashable]) -> float:
        """The repetition part: from -1 to 0."""
        n = int(self.ngram)  # an option comes as a float
        counts = Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
        frequent = [count for count in counts.values() if count > self.ngram_threshold]
        if not frequent:
            return 0.0
        return -min(1.0, max(len(frequent) / len(counts), max(frequent) / (len(tokens) / n)))


def half_cosine(start: float, end: float, share: float) -> float:
    """From `start` to `end` along half a cosine; `share` is from 0 to 1."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * share))


def answer_part(text: str) -> str | None:
    """The text after the thought; None unless the response starts with one thought and has each tag once."""
    if text.count("<think>") != 1 or text.count("</think>") != 1:
        return None
    found = _THOUGHT.fullmatch(text)
    return found[2] if found else None


def is_correct(answer: str, ground_truth: object) -> bool:
    """Whether the last `\\boxed{…}` of an answer equals the ground truth, as mathematics or as text."""
    if ground_truth is None or not str(ground_truth).strip():
        raise UserError("reward phi4: a row has no ground truth; correct the data (workload.data.answer_column)")
    truth, boxed = str(ground_truth).strip(), last_boxed(answer).strip()
    if not boxed:
        return False
    return boxed == truth or equal(f"\\boxed{{{truth}}}", f"\\boxed{{{boxed}}}")


def last_boxed(text: str) -> str:
    """The content of the last closed `\\boxed{…}`; empty if there is none."""
    for found in reversed(list(_BOXED.finditer(text))):
        depth, at = 1, found.end()
        while at < len(text):
            if text[at] == "\\":
                at += 2  # an escaped brace, or the second half of a line break
                continue
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                return text[found.end() : at]
            at += 1
    return ""
