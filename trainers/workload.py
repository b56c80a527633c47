"""Defines the configuration sections `workload` (what is trained) and `arms` (who trains it)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, field_validator, model_validator

from common.errors import UserError
from node.built_in_rewards import ROW, reward_name
from node.dataset import BUILTIN_DATA
from node.hub import DATA_SUFFIXES, source_kind
from node.own_reward import ARGUMENTS
from node.tiny import BUILTIN_MODELS, WITHOUT_WEIGHTS
from trainers.reward_settings import AnyReward, RewardModel
from trainers.section import Count, Environment, Number, Options, PositiveInt, Section, Seed, require_source


class Data(Section):
    """Where the prompts and their ground truths come from."""

    source: str
    """`builtin:arithmetic` (generated), a local .jsonl, .json or .parquet file, or a hub dataset's id."""
    revision: str | None = None
    """The commit of a hub dataset; required for a hub id, so that the data cannot change under a result."""
    subset: str | None = None
    """A hub dataset's configuration name."""
    split: str = "train"
    """A hub dataset's split."""
    prompt_column: str = "question"
    """The column that holds the prompt: text, or messages with role and content, as in the data of verl."""
    answer_column: str = "answer"
    """The column that holds the ground truth; a dot leads into a column (`reward_model.ground_truth`)."""
    columns: Annotated[tuple[str, ...], Field(exclude_if=lambda names: not names)] = ()
    """Names of further columns for your own reward functions (docs/rewards.md)."""
    answer_after: str | None = None
    """If given, the ground truth is the text after the last occurrence of this (GSM8K: `####`)."""
    answer_commas: Annotated[Literal["remove", "keep"], Field(exclude_if=lambda how: how == "remove")] = "remove"
    """Commas in the text after `answer_after`. `remove`: thousands separators are removed (`100,200` is 100200).
    `keep`: the text is unchanged (`100,200` is two numbers)."""
    system_prompt: str | None = None
    """A system message before every prompt."""
    rows: PositiveInt | None = None
    """Use this many rows from the start; null: all (the built-in data has 512)."""
    seed: Seed = 0
    """Seed of generated data."""
    too_long: Literal["error", "drop"] = "error"
    """For prompts longer than `max_prompt_length`: refuse the data, or drop them and report how many."""
    test_source: str | None = None
    """A local file of the same columns for validation (`workload.test_steps`); null: the training rows."""

    @field_validator("columns")
    @classmethod
    def _columns_are_free(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        for name in columns:
            if name in (*ARGUMENTS, *ROW):
                raise ValueError(f"every reward function already gets {name!r}; rename the column in the data")
            if columns.count(name) > 1:
                raise ValueError(f"{name!r} is listed {columns.count(name)} times; list it once")
        return columns

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Data:
        kind = f"a local {', '.join(DATA_SUFFIXES)} file"
        require_source(self.source, self.revision, BUILTIN_DATA, kind, is_data=True)
        if source_kind(self.source) == "local" and not self.source.endswith(DATA_SUFFIXES):
            raise ValueError(f"source must be {kind}, a hub id or {BUILTIN_DATA[0]} (got {self.source!r})")
        if self.test_source is not None and not self.test_source.endswith(DATA_SUFFIXES):
            raise ValueError(f"test_source must be {kind} (got {self.test_source!r})")
        return self


class Model(Section):
    """The policy that is trained."""

    source: str
    """`builtin:tiny-qwen2` (random weights, tokenizer trained on the data; on GPUs, whose kernels need wider heads, use
    `builtin:small-qwen2`; `builtin:phi4-shape` is for replays with `load_format: dummy`), a local folder, or a hub
    model's id."""
    revision: str | None = None
    """The commit of a hub model; required for a hub id."""
    seed: Seed = 0
    """Seed of a built-in model's weights."""

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Model:
        require_source(self.source, self.revision, BUILTIN_MODELS, "a local folder")
        return self


class Workload(Section):
    """What is trained: the same for every arm, in words that are the same for every trainer."""

    model: Model
    """The policy."""
    data: Data
    """The prompts."""
    rewards: tuple[AnyReward, ...] = Field(min_length=1)
    """The rewards; their weighted sum is the score."""
    steps: PositiveInt
    """Training steps of each run."""
    batch_size: PositiveInt
    """Completions per training step (prompts per step times `num_generations`)."""
    num_generations: PositiveInt
    """Completions per prompt: GRPO's group."""
    mini_batch_size: PositiveInt | None = None
    """Completions per optimizer step; null: the whole batch."""
    micro_batch_size: PositiveInt | None = None
    """Completions per forward and backward pass on one device; null: the whole batch."""
    max_prompt_length: PositiveInt
    """Longest prompt, in tokens."""
    max_response_length: PositiveInt
    """Longest completion, in tokens; longer ones are truncated."""
    temperature: Annotated[Number, Field(gt=0)] = 1.0
    """Sampling temperature of the rollout."""
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling of the rollout; 1 turns it off."""
    learning_rate: Annotated[Number, Field(ge=0)] = 1e-6
    """AdamW's learning rate; constant after the warm-up."""
    lr_warmup_steps: Count = 0
    """Warm-up steps, over which the learning rate rises from 0."""
    beta: Annotated[Number, Field(ge=0)] = 0.0
    """Weight of the KL penalty against the initial policy; 0 computes no reference log-probabilities."""
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = "grpo"
    """How token losses are normalised."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of training and rollout."""
    save_steps: Count = 0
    """Steps between checkpoints; 0: none, and an interrupted run starts again."""
    test_steps: Count = 0
    """Steps between validations; 0: none."""
    samples: Annotated[StrictInt, Field(ge=0, le=32)] = 0
    """Number of prompts with sample completions in the report: at the start, halfway and at the end of training. 0:
    none; their text may be private."""
    nodes: PositiveInt = 1
    """Nodes per run."""
    gpus_per_node: Count = 0
    """GPUs per node of one run; 0: it trains on the CPU."""
    gpu: Annotated[str, Field(max_length=40)] | None = None
    """The GPU model, such as `H100-80GB`; floors and some of the preflight's comparisons need it."""

    @property
    def processes(self) -> int:
        """Processes of a trainer with one per GPU, on a CPU one per node."""
        return self.nodes * max(1, self.gpus_per_node)

    @property
    def reward_models(self) -> list[RewardModel]:
        """The rewards that are models."""
        return [reward for reward in self.rewards if isinstance(reward, RewardModel)]

    def for_spec(self) -> dict[str, Any]:
        """The workload for a specification, without `samples` if 0: older runs keep their fingerprints."""
        return self.model_dump(mode="json", exclude=None if self.samples else {"samples"})

    @model_validator(mode="after")
    def _batch_divides(self) -> Workload:
        if self.batch_size % self.num_generations:
            raise ValueError(
                f"batch_size counts completions and must be a multiple of num_generations "
                f"(got {self.batch_size} and {self.num_generations}; "
                f"try {-(-self.batch_size // self.num_generations) * self.num_generations})"
            )
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"micro_batch_size must divide batch_size (got {self.micro_batch_size} and {self.batch_size}; "
                f"try {math.gcd(self.batch_size, self.micro_batch_size)})"
            )
        return self

    @field_validator("rewards")
    @classmethod
    def _rewards_differ(cls, rewards: tuple[AnyReward, ...]) -> tuple[AnyReward, ...]:
        names = [reward_name(vars(reward)) for reward in rewards]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"reward {name} is listed {names.count(name)} times; list it once, with one weight")
        return rewards


class TrainedArm(Section):
    """Who trains and who generates, in which stack, with which options."""

    trainer: str
    """The trainer: `trl`, `verl`, `swift`, `replay`, which trains nothing (docs/replay.md), or `command`, your own
    script (docs/howto/script.md). An imported run may have any other whose table gives its timer tree."""
    engine: str
    """The rollout engine: `vllm`, `sglang`, with trl also `transformers`; with swift `transformers` or
    `vllm`; with another trainer its own."""
    stack: str = ""
    """The pinned environment, a folder in `envs/`. Required for an arm that is trained. With `import` it
    gives the runs' packages for the preflight's ledger and is never built."""
    options: Options = {}
    """The trainer's own settings: for trl GRPOConfig's fields, for verl Hydra's keys
    (`actor_rollout_ref.rollout.tensor_model_parallel_size: 2`, also nested; `+key` adds a key that verl's configuration
    lacks), for replay `lengths` and `engine`, for command those of docs/howto/script.md. No secrets: results
    contain them."""
    env: Environment = {}
    """Environment variables of this arm's training processes. No secrets: results contain them."""


def require_words(trainer: str, workload: Workload, rules: Iterable[tuple[str, bool, str, str]]) -> None:
    """`UserError` for the first broken rule: the workload's word, whether it is broken, what is allowed, and why."""
    for word, broken, allowed, why in rules:
        if broken:
            got = getattr(workload, word)
            raise UserError(f"workload.{word} must be {allowed} with trainer {trainer}: {why} (got {got})")


def require_trainable(workload: Workload) -> None:
    """`UserError` for a built-in model without weights, which only a replay can use."""
    if (source := workload.model.source) in WITHOUT_WEIGHTS:
        raise UserError(
            f"workload.model.source {source} has no weights to train; use it with trainer replay, or another model "
            f"({', '.join(name for name in BUILTIN_MODELS if name not in WITHOUT_WEIGHTS)}, a folder, a hub id)"
        )
