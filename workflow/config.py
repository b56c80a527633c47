"""What may an experiment's configuration say?

One frozen model of `config.yaml`: unknown keys are refused, every default is here, and the docstring under a field
is its documentation (it becomes the JSON schema's description). Site facts (partitions, walltime, cores) are not
here: they belong to a profile.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from workflow.fields import CURRENCY_PATTERN, SECTION, Count, Name, Number, PositiveInt, Seed
from workflow.imports import Import, ImportField, may_hold_several_runs, sources_of, whole_import
from workflow.messages import did_you_mean, short
from workflow.published import as_number, check_option_name, check_published, check_text, check_variable


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to unknown keys."""

    model_config = SECTION


BUILTIN_DATA = ("builtin:arithmetic",)
# As workflow/jobs/tiny.py has them.
BUILTIN_MODELS = ("builtin:tiny-qwen2", "builtin:small-qwen2")
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
    seed: Seed = 0
    """Seed of generated data."""
    too_long: Literal["error", "drop"] = "error"
    """What to do with prompts longer than `max_prompt_length`: refuse the data, or leave them out and say how many."""
    test_source: str | None = None
    """A local file of the same columns for validation (`workload.test_steps`); null: the training rows."""

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Data:
        kind = f"a local {', '.join(DATA_SUFFIXES)} file"
        _checked_source(self.source, self.revision, BUILTIN_DATA, kind)
        if source_kind(self.source) == "local" and not self.source.endswith(DATA_SUFFIXES):
            raise ValueError(f"source must be {kind}, a hub id or {BUILTIN_DATA[0]} (got {self.source!r})")
        if self.test_source is not None and not self.test_source.endswith(DATA_SUFFIXES):
            raise ValueError(f"test_source must be {kind} (got {self.test_source!r})")
        return self


class Model(Section):
    """The policy that is trained."""

    source: str
    """`builtin:tiny-qwen2` (random weights, tokenizer trained on the data; `builtin:small-qwen2` for GPUs, whose
    kernels want wider heads), a local folder, or a hub model's id."""
    revision: str | None = None
    """The commit of a hub model; required for a hub id."""
    seed: Seed = 0
    """Seed of a built-in model's weights."""

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Model:
        _checked_source(self.source, self.revision, BUILTIN_MODELS, "a local folder")
        return self


# As workflow/jobs/rewards.py has them, which runs in the stacks.
REWARD_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "accuracy": (),
    "format": (),
    "length": ("target", "alpha"),
    "phi4": ("max_response_length", "positive_from", "negative_to", "ngram", "ngram_threshold"),
}


class Reward(Section):
    """One reward function and its weight in the sum."""

    name: Literal["accuracy", "format", "length", "phi4"]
    """`accuracy`: answer equals ground truth; `format`: <think>…</think><answer>…</answer>; `length`: near a target;
    `phi4`: Phi-4-reasoning's (correct and short is best, repetition costs)."""
    weight: Number = 1.0
    """Factor of this reward in the sum."""
    options: dict[str, Number] = {}
    """The function's own numbers: `target` (characters) and `alpha` of `length`; of `phi4`, in tokens,
    `max_response_length` (the workload's), `positive_from`, `negative_to` (their share of it), `ngram` and
    `ngram_threshold` (5)."""

    @model_validator(mode="after")
    def _options_are_known(self) -> Reward:
        known = REWARD_OPTIONS[self.name]
        for option in self.options:
            if option not in known:
                raise ValueError(
                    f"reward {self.name} has no option {option!r}{did_you_mean(option, known)}; "
                    f"it has: {', '.join(known) or 'none'}"
                )
        return self


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
    mini_batch_size: PositiveInt | None = None
    """Completions per optimizer step; the whole batch when null."""
    micro_batch_size: PositiveInt | None = None
    """Completions per forward and backward pass on one device; the whole batch when null."""
    max_prompt_length: PositiveInt
    """Longest prompt, in tokens."""
    max_response_length: PositiveInt
    """Longest completion, in tokens; longer ones are cut off."""
    temperature: Annotated[Number, Field(gt=0)] = 1.0
    """Sampling temperature of the rollout."""
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling of the rollout; 1 turns it off."""
    learning_rate: Annotated[Number, Field(ge=0)] = 1e-6
    """Learning rate of AdamW, constant after the warm-up."""
    lr_warmup_steps: Count = 0
    """Steps over which the learning rate rises from 0."""
    beta: Annotated[Number, Field(ge=0)] = 0.0
    """Weight of the KL penalty against the initial policy; with 0 no reference log-probabilities are computed."""
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = "grpo"
    """How token losses are normalised."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of training and rollout."""
    save_steps: Count = 0
    """A checkpoint every so many steps; with 0 there is none, and an interrupted run starts again."""
    test_steps: Count = 0
    """A validation every so many steps; with 0 there is none."""
    nodes: PositiveInt = 1
    """Nodes that one run trains on."""
    gpus_per_node: Count = 0
    """GPUs that one run trains on, on each node; with 0 it trains on the CPU."""
    gpu: Annotated[str, Field(max_length=40)] | None = None
    """The GPU that the experiment is meant for, such as `H100-80GB`; preflight's estimate of memory needs it."""

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

    @field_validator("rewards")
    @classmethod
    def _rewards_differ(cls, rewards: tuple[Reward, ...]) -> tuple[Reward, ...]:
        names = [reward.name for reward in rewards]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"reward {name} is listed {names.count(name)} times; list it once, with one weight")
        return rewards


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    check_published(options)
    # In one order, however they are written: a trainer that takes them as a list has them in its fingerprint.
    return _ordered(nested(options))


def _ordered(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _ordered(value) if isinstance(value, Mapping) else value for key, value in sorted(options.items())}


def _checked_environment(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        check_variable(name)
        check_text(value, name)
    return env


Options = Annotated[dict[str, Any], AfterValidator(_checked_options)]
Environment = Annotated[dict[str, str], AfterValidator(_checked_environment)]


class Shared(Section):
    """What all arms of one trainer share; an arm's own words win."""

    options: Options = {}
    """As an arm's `options`."""
    env: Environment = {}
    """As an arm's `env`."""


class Envs(Section):
    """How the stacks are built. It changes where compilers and Python come from, not what is pinned."""

    backend: Literal["auto", "conda", "uv"] = "auto"
    """`conda`: Python, CUDA toolkit and compilers from conda-lock.yml; `uv`: only the pip packages, on a Python that
    is there; `auto`: conda where the stack has such a lock and micromamba, mamba or conda is there."""


def _or_a_repetition(schema: dict[str, Any]) -> None:
    """For editors: an arm that repeats another says no more than that."""
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["same_as"]}]


class Arm(Section, json_schema_extra=_or_a_repetition):
    """What is compared: a trainer with an engine in a stack, and its own options. An arm is trained, or, with `import`,
    read from what runs elsewhere have logged."""

    trainer: str
    """Who trains: `trl` or `verl`; of imported runs also `swift`, and any other where a table brings its timer tree."""
    engine: str
    """Who generates: `vllm`, with trl also `transformers`, with verl also `sglang`; with another trainer its own."""
    stack: str = ""
    """The pinned environment, a folder in `envs/`. Required for an arm that is trained. With `import` it says what the
    runs had installed, for the preflight's ledger, and is never built."""
    options: Options = {}
    """Raw settings of the trainer, passed through as they are: for trl GRPOConfig's fields, for verl Hydra's keys
    (`actor_rollout_ref.rollout.tensor_model_parallel_size: 2`, nested if you like; `+key` adds one that verl's own
    configuration lacks). No secrets: these are written into results."""
    env: Environment = {}
    """Environment variables of this arm's training processes. No secrets: these are written into results."""
    import_: ImportField = Field(default=None, alias="import")
    """Runs that exist already, instead of a training: a file, a folder or `wandb:entity/project/id`, a list of those
    (one run each), or a section with what is known of the runs."""
    same_as: str | None = None
    """An A/A arm: a repetition of the arm of that name, whose differences are noise. It takes everything from that arm
    and gives nothing else itself; where that arm is imported, it gives an `import` of its own."""

    @model_validator(mode="after")
    def _has_a_stack(self) -> Arm:
        if not self.stack and self.import_ is None:
            raise ValueError("stack is missing; only an arm with import can do without")
        return self


class Report(Section):
    """What the report adds to the times."""

    price_per_gpu_hour: Annotated[Number, Field(gt=0)] | None = None
    """What one GPU costs for an hour, for the cost of the GPU-hours used; null: there are GPU-hours alone."""
    currency: Annotated[str, Field(pattern=CURRENCY_PATTERN)] = "USD"
    """The price's currency, in its three letters."""
    to_steps: PositiveInt | None = None
    """Tell the GPU-hours of so many training steps, and with a price their cost; null: only those of what was used."""


class Config(Section):
    """An experiment: the arms, the workload that they share, and what is varied."""

    experiment: Name
    """Name of the experiment; results lie in `results/<experiment>/`."""
    description: Annotated[str, Field(max_length=5_000)] = ""
    """One or two sentences for the report's reader."""
    arms: dict[Name, Arm] = Field(min_length=1)
    """What is compared, by name: letters (A-Z, a-z), digits, `_`, `.` and single `-`, 40 at most."""
    baseline: str
    """The arm that the others are compared with."""
    workload: Workload | None = None
    """What every arm trains; required if any arm is trained."""
    shared: dict[str, Shared] = {}
    """What all arms of a trainer share, by the trainer's name."""
    envs: Envs = Envs()
    """How the stacks are built."""
    sweep: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = {}
    """Factors: a dotted path (`workload.temperature`, `arms.vllm.options.vllm_max_num_seqs`) to a list of values.
    All combinations are run; an arm's own options multiply only that arm's runs."""
    seeds: tuple[Seed, ...] = Field(default=(0,), min_length=1)
    """One run per arm, factor combination and seed."""
    warmup_steps: Count = 1
    """Steps at the start of each run that are shown but not counted. Fixed here, before anything is measured;
    fewer than `workload.steps`."""
    report: Report = Report()
    """What the report adds to the times; it changes no run."""

    @model_validator(mode="before")
    @classmethod
    def _repetitions_are_whole(cls, raw: Any) -> Any:
        arms = raw.get("arms") if isinstance(raw, Mapping) else None
        if not isinstance(arms, Mapping):
            return raw
        return {**raw, "arms": {name: _repeated(name, arm, arms) for name, arm in arms.items()}}

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds must differ from one another (got {list(seeds)})")
        return seeds

    @field_validator("sweep")
    @classmethod
    def _sweep_can_be_published(cls, sweep: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        for path, values in sweep.items():
            # Here and not only in each run's arm, whose error would show the value.
            keys = path.split(".")
            for key in keys[3:] if keys[0] == "arms" else ():
                (check_variable if keys[2] == "env" else check_option_name)(key, path)
            for index, value in enumerate(values):
                check_published(value, f"{path}[{index}]")
            if len({json.dumps(as_number(value), sort_keys=True) for value in values}) < len(values):
                raise ValueError(f"{path}: the sweep lists the same value twice (got {short(list(values))})")
        return sweep

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
                    f"(to see the noise between equal runs, give more seeds, or of {name} only same_as: {same})"
                )
        return self

    @model_validator(mode="after")
    def _a_trained_arm_has_a_workload(self) -> Config:
        if self.trained and self.workload is None:
            raise ValueError(f"workload is missing: {_these(self.trained)} trained (imported arms need none)")
        return self

    @model_validator(mode="after")
    def _sources_differ(self) -> Config:
        seen: dict[str, tuple[str, str]] = {}
        for where, source, same in sources_of(self.imports):
            if same in seen:
                first, written = seen[same]
                # The rows are told apart, or refused, where they are read.
                if first != where and may_hold_several_runs(source):
                    continue
                raise ValueError(
                    f"{first} and {where} have the same source ({short(written)} and {short(source)}): a run is "
                    "counted once, so give each its own, or remove one"
                )
            seen[same] = where, source
        return self

    @model_validator(mode="after")
    def _shared_is_used(self) -> Config:
        trainers = sorted({arm.trainer for arm in self.arms.values()})
        for trainer in self.shared:
            if trainer not in trainers:
                raise ValueError(
                    f"shared.{trainer}: no arm has that trainer{did_you_mean(trainer, trainers)}; "
                    f"the arms have: {', '.join(trainers)}"
                )
        return self

    @property
    def imports(self) -> dict[str, Import]:
        """What each imported arm is read from, by the arm's name."""
        return {name: arm.import_ for name, arm in self.arms.items() if arm.import_ is not None}

    @property
    def trained(self) -> list[str]:
        """The arms that are trained, by name."""
        return [name for name, arm in self.arms.items() if arm.import_ is None]

    def arm(self, name: str) -> Arm:
        """An arm with what it shares with the others of its trainer."""
        arm = self.arms[name]
        shared = self.shared.get(arm.trainer, Shared())
        options, env = merged(shared.options, arm.options), {**shared.env, **arm.env}
        return arm.model_copy(update={"options": options, "env": env})


def _these(arms: list[str]) -> str:
    return f"arm {arms[0]} is" if len(arms) == 1 else f"arms {', '.join(arms)} are"


def _repeated(name: Any, arm: Any, arms: Mapping[Any, Any]) -> Any:
    """An arm as it is written, one with `same_as` with what it takes from the other."""
    if not isinstance(arm, Mapping) or arm.get("same_as") is None:
        return arm
    where, other = f"arms.{name}.same_as", arm["same_as"]
    one = arms.get(other) if isinstance(other, str) else None
    others = [str(known) for known in arms if known != name]
    if other == name or other not in arms:
        raise ValueError(
            f"{where} must be another arm: {', '.join(others) or 'there is none'} (got {short(other)})"
            f"{did_you_mean(str(other), others)}"
        )
    if not isinstance(one, Mapping):
        return arm
    if one.get("same_as") is not None:
        raise ValueError(
            f"{where} must be an arm that repeats no other (got {other!r}, which repeats {one['same_as']!r}); "
            f"write same_as: {one['same_as']}"
        )
    if more := [str(key) for key in arm if key not in ("same_as", "import")]:
        raise ValueError(
            f"{where}: a repetition takes everything from {other} and gives nothing else (got {', '.join(more)}); "
            "remove those, or same_as"
        )
    if (one.get("import") is None) != (arm.get("import") is None):
        raise ValueError(
            f"{where}: {other} is imported, and a repetition needs an import of its own"
            if arm.get("import") is None
            else f"{where}: {other} is trained, and so is its repetition; remove import, or same_as"
        )
    whole = {**one, **arm}
    if "import" in arm:
        facts, own = whole_import(one["import"]), whole_import(arm["import"])
        whole["import"] = {**facts, **own} if isinstance(facts, Mapping) and isinstance(own, Mapping) else own
    return whole


def nested(options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Settings with every dotted key as a mapping in a mapping; `ValueError` where two say different things of one."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        head, *rest = name.split(".")
        if not all((head, *rest)):
            raise ValueError(f"{where}{name}: a key must not begin or end with a dot, nor hold two in a row")
        # Within a value of a list nothing is a key of the trainer's.
        inner = nested(value, f"{where}{name}.") if isinstance(value, Mapping) else value
        for key in reversed(rest):
            inner = {key: inner}
        result[head] = _joined(result[head], inner, f"{where}{head}") if head in result else inner
    return result


def _joined(one: Any, other: Any, where: str) -> Any:
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        raise ValueError(f"{where} is given twice, once with a dot and once without; give it once")
    both = {key: _joined(one[key], other[key], f"{where}.{key}") for key in one.keys() & other.keys()}
    return {**one, **other, **both}


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings as one; where both have a value, the second's."""
    both = {
        key: merged(under[key], over[key])
        for key in under.keys() & over.keys()
        if isinstance(under[key], Mapping) and isinstance(over[key], Mapping)
    }
    return {**under, **over, **both}


def _next_multiple(value: int, of: int) -> int:
    return -(-value // of) * of
