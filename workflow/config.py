"""What may an experiment's configuration say?

One frozen model of `config.yaml`: unknown keys are refused, every default is here, and the docstring under a field
is its documentation (it becomes the JSON schema's description). Site facts (partitions, walltime, cores) are not
here: they belong to a profile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from analysis.errors import UserError
from workflow.messages import did_you_mean

PositiveInt = Annotated[StrictInt, Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+)*$", max_length=40)]
# Values of such variables would be written into spec.json and from there into reports.
SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)", re.IGNORECASE)


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


BUILTIN_DATA = ("builtin:arithmetic",)
BUILTIN_MODELS = ("builtin:tiny-qwen2",)
DATA_SUFFIXES = (".jsonl", ".json", ".parquet")


def source_kind(source: str) -> Literal["builtin", "local", "hub"]:
    """Where a source lies: with us, on this machine (a data file, or a path that is written as one), or on a hub."""
    if source.startswith("builtin:"):
        return "builtin"
    if source.startswith(("/", ".", "~")) or source.endswith(DATA_SUFFIXES) or source.count("/") > 1:
        return "local"
    return "hub"


def _checked_source(source: str, revision: str | None, builtins: tuple[str, ...], local: str) -> None:
    kind = source_kind(source)
    if kind == "builtin" and source not in builtins:
        raise ValueError(f"source must be {' or '.join(builtins)}, {local} or a hub id (got {source!r})")
    if kind == "hub" and not revision:
        raise ValueError(
            f"{source!r} is read as a hub id, and needs a revision (a commit), so that it cannot change under a "
            f"result; for {local} write a path, such as ./{source}"
        )


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
    """The column that holds the prompt's text."""
    answer_column: str = "answer"
    """The column that holds the ground truth."""
    answer_after: str | None = None
    """If given, the ground truth is what follows the last occurrence of this text (GSM8K: `####`)."""
    system_prompt: str | None = None
    """A system message put before every prompt."""
    rows: PositiveInt | None = None
    """Use this many rows from the start; all of them when null (the built-in data has 512)."""
    seed: StrictInt = 0
    """Seed of generated data."""
    too_long: Literal["error", "drop"] = "error"
    """What to do with prompts longer than `max_prompt_length`: refuse the data, or leave them out and say how many."""

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Data:
        kind = f"a local {', '.join(DATA_SUFFIXES)} file"
        _checked_source(self.source, self.revision, BUILTIN_DATA, kind)
        if source_kind(self.source) == "local" and not self.source.endswith(DATA_SUFFIXES):
            raise ValueError(f"source must be {kind}, a hub id or {BUILTIN_DATA[0]} (got {self.source!r})")
        return self


class Model(Section):
    """The policy that is trained."""

    source: str
    """`builtin:tiny-qwen2` (random weights, tokenizer trained on the data), a local folder, or a hub model's id."""
    revision: str | None = None
    """The commit of a hub model; required for a hub id."""
    seed: StrictInt = 0
    """Seed of a built-in model's weights."""

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Model:
        _checked_source(self.source, self.revision, BUILTIN_MODELS, "a local folder")
        return self


class Reward(Section):
    """One reward function and its weight in the sum."""

    name: Literal["accuracy", "format", "length"]
    """`accuracy`: answer equals ground truth; `format`: <think>…</think><answer>…</answer>; `length`: near a target."""
    weight: float = 1.0
    """Factor of this reward in the sum."""
    options: dict[str, float] = {}
    """The function's own numbers, such as `target` of `length`."""


class Workload(Section):
    """What is trained: the same for every arm, in words that belong to no trainer."""

    model: Model
    """The policy."""
    data: Data
    """The prompts."""
    rewards: tuple[Reward, ...] = Field(min_length=1)
    """The rewards; their weighted sum is the score."""
    steps: PositiveInt
    """Training steps of each run."""
    batch_size: PositiveInt
    """Completions that one training step learns from (prompts per step times `num_generations`)."""
    num_generations: PositiveInt
    """Completions per prompt: the group that GRPO compares."""
    micro_batch_size: PositiveInt | None = None
    """Completions per forward and backward pass on one device; the whole batch when null."""
    max_prompt_length: PositiveInt
    """Longest prompt, in tokens."""
    max_response_length: PositiveInt
    """Longest completion, in tokens; longer ones are cut off."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature of the rollout."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling of the rollout; 1 turns it off."""
    learning_rate: Annotated[float, Field(ge=0)] = 1e-6
    """Learning rate of AdamW, constant over the run."""
    beta: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL penalty against the initial policy; with 0 no reference log-probabilities are computed."""
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = "grpo"
    """How token losses are normalised."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of training and rollout."""
    save_steps: Annotated[StrictInt, Field(ge=0)] = 0
    """A checkpoint every so many steps; with 0 there is none, and an interrupted run starts again."""

    @model_validator(mode="after")
    def _batch_divides(self) -> Workload:
        if self.batch_size % self.num_generations:
            raise ValueError(
                f"batch_size counts completions and must be a multiple of num_generations "
                f"(got {self.batch_size} and {self.num_generations}; "
                f"try {_next_multiple(self.batch_size, self.num_generations)})"
            )
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"micro_batch_size must divide batch_size (got {self.micro_batch_size} and {self.batch_size}; "
                f"try {math.gcd(self.batch_size, self.micro_batch_size)})"
            )
        return self


class Arm(Section):
    """What is compared: a trainer with an engine in a stack, and its own options."""

    trainer: str
    """Who trains: `trl`."""
    engine: str
    """Who generates: `transformers` or `vllm`."""
    stack: str
    """The pinned environment, a folder in `envs/`."""
    options: dict[str, Any] = {}
    """Raw settings of the trainer, passed through as they are (for trl: GRPOConfig's fields)."""
    env: dict[str, str] = {}
    """Environment variables of this arm's training processes. No secrets: these are written into results."""

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if SECRET_NAME.search(name):
                raise ValueError(
                    f"{name} looks like a secret, and settings are written into results; "
                    "export it in the shell that starts snakemake instead"
                )
        return env


class Config(Section):
    """An experiment: the arms, the workload that they share, and what is varied."""

    experiment: Name
    """Name of the experiment; results lie in `results/<experiment>/`."""
    description: str = ""
    """One or two sentences for the report's reader."""
    arms: dict[Name, Arm] = Field(min_length=1)
    """What is compared, by name."""
    baseline: str
    """The arm that the others are compared with."""
    workload: Workload
    """What every arm trains."""
    sweep: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = {}
    """Factors: a dotted path (`workload.temperature`, `arms.vllm.options.vllm_max_num_seqs`) to a list of values.
    All combinations are run; an arm's own options multiply only that arm's runs."""
    seeds: tuple[StrictInt, ...] = Field(default=(0,), min_length=1)
    """One run per arm, factor combination and seed."""
    warmup_steps: Annotated[StrictInt, Field(ge=0)] = 1
    """Steps at the start of each run that are shown but not counted. Fixed here, before anything is measured."""

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds must differ from one another (got {list(seeds)})")
        return seeds

    @model_validator(mode="after")
    def _arms_make_sense(self) -> Config:
        if self.baseline not in self.arms:
            raise ValueError(
                f"baseline must be one of the arms: {', '.join(self.arms)} (got {self.baseline!r})"
                f"{did_you_mean(self.baseline, self.arms)}"
            )
        seen: dict[str, str] = {}
        for name, arm in self.arms.items():
            same = seen.setdefault(arm.model_dump_json(), name)
            if same != name:
                raise ValueError(
                    f"arms {same} and {name} are identical; change one's engine, stack or options, or leave it out "
                    "(to see the noise between equal runs, give more seeds)"
                )
        return self


def typed(overrides: Any) -> Any:
    """Values from a command line, all text, as a YAML file would hold them."""
    if isinstance(overrides, Mapping):
        return {key: typed(value) for key, value in overrides.items()}
    if isinstance(overrides, list):
        return [typed(value) for value in overrides]
    return yaml.safe_load(overrides) if isinstance(overrides, str) and overrides else overrides


def parse_config(raw: Mapping[str, Any]) -> Config:
    """The configuration in a mapping, as YAML gives it; a `UserError` lists everything that is wrong with it."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(raw, dict(problem)) for problem in error.errors(include_url=False)]
        raise UserError("the configuration cannot be used:\n" + "\n".join(f"  - {line}" for line in lines)) from None


def _explain(raw: Mapping[str, Any], problem: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    kind, got = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        known = _known_keys(problem["loc"][:-1])
        key = str(problem["loc"][-1])
        return f"{where} is not a known key{did_you_mean(key, known)}. Allowed here: {', '.join(known)}"
    if kind == "missing":
        return f"{where} is missing"
    if kind == "value_error":
        message = str(problem["ctx"]["error"])
        return f"{where}: {message}" if where else message
    if kind == "string_pattern_mismatch":
        return f"{where} may hold letters, digits, '_', '.' and single '-' (got {got!r})"
    message = problem["msg"]
    message = message.replace("Input should be", "must be").replace("Tuple should", "must")
    return f"{where}: {message[0].lower() + message[1:]} (got {_short(got)})"


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    """The keys that the model at a location knows."""
    models: dict[tuple[str, ...], type[Section]] = {
        (): Config,
        ("arms",): Arm,
        ("workload",): Workload,
        ("workload", "model"): Model,
        ("workload", "data"): Data,
        ("workload", "rewards"): Reward,
    }
    path = tuple(str(part) for part in loc)
    if path[:1] == ("arms",):
        path = ("arms",)
    elif path[:2] == ("workload", "rewards"):
        path = path[:2]
    return list(models[path].model_fields)


def _next_multiple(value: int, of: int) -> int:
    return -(-value // of) * of


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
