"""Defines a workload's rewards: a built-in reward, your own function, or a reward model, each with its weight."""

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
    `repetition`: repeated n-grams cost; `soft_overlong`: DAPO's, length near the limit costs; `emoji`: a count."""
    weight: Number = 1.0
    """Factor of this reward in the sum."""
    options: dict[str, Number] = {}
    """The function's options. `length`: `target` (characters) and `alpha`. `phi4`: in tokens, `max_response_length`
    (the workload's), `positive_from` and `negative_to` (shares of it), `ngram` and `ngram_threshold` (5). The others:
    docs/rewards.md."""

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
    """Your own reward function, and its weight in the sum (docs/rewards.md)."""

    source: str
    """A Python file. Its text is part of the run's specification: a change makes another run."""
    function: Annotated[str, Field(pattern=FUNCTION_PATTERN, max_length=40)]
    """The function in it; its name is the reward's in the log. It gets `options`, and each of `completions`, `prompts`,
    `rows`, `token_ids`, `cut_off` and the columns of `data.columns` that it has a parameter for. It returns a number or
    None for each completion. Or a function as verl or TRL calls it, or a class as ms-swift does."""
    signature: Annotated[
        Literal["rolloutbench", "verl", "trl", "swift"] | None, Field(exclude_if=lambda one: one is None)
    ] = None
    """As whose function it is called. Null: by its parameters; one that fits several is rolloutbench's."""
    weight: Number = 1.0
    """Factor of this reward in the sum."""
    options: Options = {}
    """Further arguments of the function, by name. No secrets: results contain them."""
    timeout_s: Annotated[Number | None, Field(gt=0, exclude_if=lambda limit: limit is None)] = None
    """Longest seconds of one call: of all completions of a step and process under TRL and ms-swift, of one under verl
    or with verl's signature. Null: 60."""

    @field_validator("source")
    @classmethod
    def _is_python(cls, source: str) -> str:
        if not source.endswith(".py"):
            raise ValueError(f"must be a Python file, whose name ends in .py (got {source!r})")
        return source


class RewardModel(Section):
    """A reward model, and its weight in the sum: a sequence classifier with one label (docs/rewards.md)."""

    model: str
    """A local folder, or a hub model's id."""
    revision: str | None = None
    """The commit of a hub model; required for a hub id."""
    name: Annotated[str, Field(pattern=FUNCTION_PATTERN, max_length=40)] = "reward_model"
    """Its name in the log."""
    weight: Number = 1.0
    """Factor of this reward in the sum."""
    max_length: PositiveInt | None = None
    """Longest text (prompt and completion) in its own tokens. A longer text loses its beginning, and the log counts it.
    Null: the longest that its tokenizer and its positions allow."""
    batch_size: PositiveInt = 16
    """Texts per pass."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of its weights and passes."""
    device: Literal["trainer", "cpu"] = "trainer"
    """Where it scores. `trainer`: next to the policy on the GPU of each training process. `cpu`."""

    @model_validator(mode="after")
    def _model_is_pinned(self) -> RewardModel:
        if source_kind(self.model) == "builtin":
            raise ValueError(f"model must be a local folder or a hub id (got {self.model!r}): none is built in")
        require_source(self.model, self.revision, (), "a local folder")
        if source_kind(self.model) == "local" and self.revision:
            raise ValueError(f"revision is for a hub model, and {self.model!r} is a local folder; remove it")
        return self


def _kind_of_reward(value: Any) -> str:
    given = value if isinstance(value, Mapping) else vars(value) if isinstance(value, Section) else {}
    return OWN if "source" in given or "function" in given else OF_MODEL if "model" in given else BUILT


# Tags of the union; error messages leave them out.
BUILT, OWN, OF_MODEL = "(built-in)", "(own)", "(model)"
KINDS_OF_REWARD = {BUILT: "Reward", OWN: "OwnReward", OF_MODEL: "RewardModel"}
AnyReward = Annotated[
    Annotated[Reward, Tag(BUILT)] | Annotated[OwnReward, Tag(OWN)] | Annotated[RewardModel, Tag(OF_MODEL)],
    Discriminator(_kind_of_reward),
]


def without_code(settings: Any) -> Any:
    """A part of a specification without the text of the user's files; their hashes stay."""
    if isinstance(settings, Mapping):
        return {k: without_code(v) for k, v in settings.items() if not (k == "code" and "sha256" in settings)}
    return [without_code(one) for one in settings] if isinstance(settings, list) else settings
