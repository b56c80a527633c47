"""The rewards of a workload: built in, a function of one's own, or a reward model, each with its weight in the sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from common.messages import did_you_mean
from node.built_in_rewards import BUILT_IN
from node.hub import source_kind
from trainers.section import FUNCTION_PATTERN, Number, Options, PositiveInt, Section, require_source


class Reward(Section):
    """One built-in reward and its weight in the sum (docs/rewards.md)."""

    name: Literal["accuracy", "format", "length", "phi4", "cosine", "repetition", "soft_overlong", "emoji"]
    """`accuracy`: answer equals ground truth; `format`: <think>…</think><answer>…</answer>; `length`: near a target;
    `phi4`: Phi-4-reasoning's (correct and short is best, repetition costs); `cosine`: accuracy scaled by length;
    `repetition`: repeated n-grams cost; `soft_overlong`: DAPO's, length near the limit costs; `emoji`: how many."""
    weight: Number = 1.0
    """Factor of this reward in the sum."""
    options: dict[str, Number] = {}
    """The function's own numbers: `target` (characters) and `alpha` of `length`; of `phi4`, in tokens,
    `max_response_length` (the workload's), `positive_from`, `negative_to` (their share of it), `ngram` and
    `ngram_threshold` (5); those of the others are in docs/rewards.md."""

    @model_validator(mode="after")
    def _options_are_known(self) -> Reward:
        known = BUILT_IN[self.name].options
        for option in self.options:
            if option not in known:
                raise ValueError(
                    f"reward {self.name} has no option {option!r}{did_you_mean(option, known)}; "
                    f"it has: {', '.join(known) or 'none'}"
                )
        return self


class OwnReward(Section):
    """A reward function of one's own, and its weight in the sum (docs/rewards.md)."""

    source: str
    """A Python file; its text is part of the run's specification, so that a change of it makes another run."""
    function: Annotated[str, Field(pattern=FUNCTION_PATTERN, max_length=40)]
    """The function in it, under whose name the reward is logged. It is called with `completions`, `prompts`, `rows`,
    `token_ids`, `cut_off` and the columns of `data.columns`, as far as it has such parameters, and with `options`; it
    returns a number or None for each completion."""
    weight: Number = 1.0
    """Factor of this reward in the sum."""
    options: Options = {}
    """Further arguments of the function, by name. No secrets: these are written into results."""

    @field_validator("source")
    @classmethod
    def _is_python(cls, source: str) -> str:
        if not source.endswith(".py"):
            raise ValueError(f"must be a Python file, whose name ends in .py (got {source!r})")
        return source

    @property
    def name(self) -> str:
        """Under which it is logged."""
        return self.function


class RewardModel(Section):
    """A reward model, and its weight in the sum: a sequence classifier with one label (docs/rewards.md)."""

    model: str
    """A local folder, or a hub model's id."""
    revision: str | None = None
    """The commit of a hub model; required for a hub id."""
    name: Annotated[str, Field(pattern=FUNCTION_PATTERN, max_length=40)] = "reward_model"
    """Under which it is logged."""
    weight: Number = 1.0
    """Factor of this reward in the sum."""
    max_length: PositiveInt | None = None
    """Longest text in its own tokens, prompt and completion; of a longer one the beginning is left out, and the log
    counts it. Null: the longest that its tokenizer and its positions allow."""
    batch_size: PositiveInt = 16
    """Texts that it scores at once."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of its weights and of the scoring."""
    device: Literal["trainer", "cpu", "own"] = "trainer"
    """Where it scores: beside the policy on the GPU of each training process, on the CPU, or in a process of its own,
    on one of the node's last GPUs, which the trainer leaves to it (of a run on the CPU there, too)."""

    @model_validator(mode="after")
    def _model_is_pinned(self) -> RewardModel:
        if source_kind(self.model) == "builtin":
            raise ValueError(f"model must be a local folder or a hub id (got {self.model!r}): none is built in")
        require_source(self.model, self.revision, (), "a local folder")
        if source_kind(self.model) == "local" and self.revision:
            raise ValueError(f"revision is of a hub model, and {self.model!r} is a local folder; remove it")
        return self


def _kind_of_reward(value: Any) -> str:
    given = value if isinstance(value, Mapping) else vars(value) if isinstance(value, Section) else {}
    return OWN if "source" in given or "function" in given else OF_MODEL if "model" in given else BUILT


# These stand in the places of errors, which leave them out.
BUILT, OWN, OF_MODEL = "(built-in)", "(own)", "(model)"
KINDS_OF_REWARD = {BUILT: "Reward", OWN: "OwnReward", OF_MODEL: "RewardModel"}
AnyReward = Annotated[
    Annotated[Reward, Tag(BUILT)] | Annotated[OwnReward, Tag(OWN)] | Annotated[RewardModel, Tag(OF_MODEL)],
    Discriminator(_kind_of_reward),
]


def without_code(settings: Any) -> Any:
    """A part of a specification in which a user's own file is shown by its hash, and not by its text."""
    if isinstance(settings, Mapping):
        return {k: without_code(v) for k, v in settings.items() if not (k == "code" and "sha256" in settings)}
    return [without_code(one) for one in settings] if isinstance(settings, list) else settings
