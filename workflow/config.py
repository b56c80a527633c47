"""What may an experiment's configuration say?

One frozen model of `config.yaml`: unknown keys are refused, every default is here, and the docstring under a field
is its documentation (it becomes the JSON schema's description). Site facts (partitions, walltime, cores) are not
here: they belong to a profile.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from analysis.errors import UserError
from workflow.messages import did_you_mean

# More than any run could do: beyond it a number is a slip of the keyboard, and overflows in a library later on.
MOST = 1_000_000_000


def _no_boolean(value: Any) -> Any:
    # YAML reads yes and on as true, which a float would take as 1.0.
    if isinstance(value, bool):
        raise ValueError(f"must be a number (got {str(value).lower()})")
    return value


PositiveInt = Annotated[StrictInt, Field(ge=1, le=MOST)]
Count = Annotated[StrictInt, Field(ge=0, le=MOST)]
# What numpy and torch both take.
Seed = Annotated[StrictInt, Field(ge=0, le=2**32 - 1)]
Number = Annotated[float, BeforeValidator(_no_boolean)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+)*$", max_length=40)]
# Values of such variables would be written into spec.json and from there into reports. As in workflow/jobs/node.py.
SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
# Narrower, since trainers have options such as max_tokens, pad_token and author.
SECRET_OPTION = re.compile(
    r"(api|access)[-_]?key|[-_]key$|secret|passw|passphrase|credential|auth(?!or(?!i[sz]))|bearer|^token$"
    r"|(hub|hf|api|access|refresh|session|wandb)[-_]?token(?!i[sz])",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"://[^\s/@:]*:[^\s/@]+@")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_NESTED = 20


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
    seed: Seed = 0
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
    seed: Seed = 0
    """Seed of a built-in model's weights."""

    @model_validator(mode="after")
    def _source_is_pinned(self) -> Model:
        _checked_source(self.source, self.revision, BUILTIN_MODELS, "a local folder")
        return self


# As workflow/jobs/rewards.py has them, which runs in the stacks.
REWARD_OPTIONS: Mapping[str, tuple[str, ...]] = {"accuracy": (), "format": (), "length": ("target", "alpha")}


class Reward(Section):
    """One reward function and its weight in the sum."""

    name: Literal["accuracy", "format", "length"]
    """`accuracy`: answer equals ground truth; `format`: <think>…</think><answer>…</answer>; `length`: near a target."""
    weight: Number = 1.0
    """Factor of this reward in the sum."""
    options: dict[str, Number] = {}
    """The function's own numbers: `target` (characters) and `alpha` of `length`; the others have none."""

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
    """Learning rate of AdamW, constant over the run."""
    beta: Annotated[Number, Field(ge=0)] = 0.0
    """Weight of the KL penalty against the initial policy; with 0 no reference log-probabilities are computed."""
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = "grpo"
    """How token losses are normalised."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of training and rollout."""
    save_steps: Count = 0
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

    @field_validator("rewards")
    @classmethod
    def _rewards_differ(cls, rewards: tuple[Reward, ...]) -> tuple[Reward, ...]:
        names = [reward.name for reward in rewards]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"reward {name} is listed {names.count(name)} times; list it once, with one weight")
        return rewards


class Arm(Section):
    """What is compared: a trainer with an engine in a stack, and its own options."""

    trainer: str
    """Who trains: `trl`."""
    engine: str
    """Who generates: `transformers` or `vllm`."""
    stack: str
    """The pinned environment, a folder in `envs/`."""
    options: dict[str, Any] = {}
    """Raw settings of the trainer, passed through as they are (for trl: GRPOConfig's fields). No secrets: these
    are written into results."""
    env: dict[str, str] = {}
    """Environment variables of this arm's training processes. No secrets: these are written into results."""

    @field_validator("options")
    @classmethod
    def _options_can_be_published(cls, options: dict[str, Any]) -> dict[str, Any]:
        _check_published(options)
        return options

    @field_validator("env")
    @classmethod
    def _env_can_be_published(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            _check_variable(name)
            _check_text(value, name)
        return env


class Config(Section):
    """An experiment: the arms, the workload that they share, and what is varied."""

    experiment: Name
    """Name of the experiment; results lie in `results/<experiment>/`."""
    description: Annotated[str, Field(max_length=5_000)] = ""
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
    seeds: tuple[Seed, ...] = Field(default=(0,), min_length=1)
    """One run per arm, factor combination and seed."""
    warmup_steps: Count = 1
    """Steps at the start of each run that are shown but not counted. Fixed here, before anything is measured;
    fewer than `workload.steps`."""

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
                (_check_variable if keys[2] == "env" else _check_option_name)(key, path)
            for index, value in enumerate(values):
                _check_published(value, f"{path}[{index}]")
            if len({json.dumps(_as_number(value), sort_keys=True) for value in values}) < len(values):
                raise ValueError(f"{path}: the sweep lists the same value twice (got {_short(list(values))})")
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
                    "(to see the noise between equal runs, give more seeds)"
                )
        return self


def _check_published(value: Any, where: str = "", depth: int = 0) -> None:
    """Refuse what JSON cannot hold, and what must not be read in spec.json and the report."""
    if depth > _MOST_NESTED:
        raise ValueError(f"{where}: nested more than {_MOST_NESTED} deep; make it flatter")
    if isinstance(value, str):
        _check_text(value, where)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where or 'it'}: keys must be text (got {_told(key)}); quote it")
            at = f"{where}.{key}" if where else key
            _check_option_name(key, at)
            _check_published(inner, at, depth + 1)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_published(inner, f"{where}[{index}]", depth + 1)
    elif isinstance(value, int | float):
        if not math.isfinite(value) if isinstance(value, float) else abs(value) >= 2**63:
            raise ValueError(
                f"{where}: must be a finite number of 64 bits (got {_short(value)}); quote it to give text"
            )
    elif value is not None:
        raise ValueError(
            f"{where}: must be text, a number, true, false, null, or a list or mapping of these "
            f"(got {_told(value)}); quote it to give it as text"
        )


def _check_text(text: str, where: str) -> None:
    if "\0" in text:
        raise ValueError(f"{where}: must not hold a NUL character (got {_short(text)}); remove it")
    if _URL_PASSWORD.search(text):
        raise ValueError(
            f"{where} holds a URL with a password, and settings are written into results; "
            "export it in the shell that starts snakemake instead"
        )


def _check_option_name(name: str, where: str) -> None:
    if SECRET_OPTION.search(name):
        raise ValueError(
            f"{where} looks like a secret, and settings are written into results; "
            "export it in the shell that starts snakemake instead"
        )


def _check_variable(name: str, where: str = "") -> None:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(
            f"{where or name!r}: a variable's name must be letters, digits and '_', and not begin with a digit "
            f"(got {name!r})"
        )
    if SECRET_VARIABLE.search(name):
        raise ValueError(
            f"{where or name} looks like a secret, and settings are written into results; "
            "export it in the shell that starts snakemake instead"
        )


def _as_number(value: Any) -> Any:
    """A value with 1.0 as 1, so that equal numbers are equal as JSON; true is not 1."""
    if isinstance(value, Mapping):
        return {key: _as_number(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_number(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def typed(overrides: Any, where: str = "") -> Any:
    """Values from a command line, all text, as a YAML file would hold them."""
    if isinstance(overrides, Mapping):
        return {key: typed(value, f"{where}.{key}" if where else str(key)) for key, value in overrides.items()}
    if isinstance(overrides, list):
        return [typed(value, f"{where}[{index}]") for index, value in enumerate(overrides)]
    if not isinstance(overrides, str) or not overrides:
        return overrides
    try:
        return yaml.safe_load(overrides)
    # ValueError: a date such as 2020-13-45.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(
            f"the value of {where or 'an override'} in --config is not YAML (got {_short(overrides)}): "
            f"{_yaml_problem(error)}; to give it as text, quote it once more, as in \"'...'\", or put it into a file "
            "for --configfile"
        ) from None


def check_yaml(file: Path) -> None:
    """A `UserError` if a configuration file cannot be read, is not YAML, or gives a key twice.

    YAML's own reader takes the last of equal keys, and would lose the arm or the seeds that the first one gave.
    """
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not text in UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x}); "
            "give a YAML file, saved as UTF-8"
        ) from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}; give a YAML file, such as config.yaml") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{file} is not YAML: {_yaml_problem(error)}; correct it there") from None
    for mapping in _mappings(root):
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in mapping.value if isinstance(key, yaml.ScalarNode)):
            line = key.start_mark.line + 1
            if (key.tag, key.value) in lines:
                raise UserError(
                    f"{file}: the key {key.value!r} is given twice, in lines {lines[key.tag, key.value]} and {line}; "
                    "a key may stand once, so rename or remove one"
                )
            lines[key.tag, key.value] = line


def _mappings(root: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """All mappings of a YAML document, each once, though aliases may lead to it again."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        what = ", ".join(part for part in (error.context, error.problem) if part)
        return f"{what} (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"
    return " ".join(str(error).split())


def parse_config(raw: Mapping[str, Any]) -> Config:
    """The configuration in a mapping, as YAML gives it; a `UserError` lists everything that is wrong with it."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        problems = [dict(problem) for problem in error.errors(include_url=False)]
        lines = [_explain(raw, problem) for problem in problems if not _follows_from_another(problem, problems)]
        raise UserError("the configuration cannot be used:\n" + "\n".join(f"  - {line}" for line in lines)) from None


def _follows_from_another(problem: dict[str, Any], problems: list[dict[str, Any]]) -> bool:
    """Whether a list is only called too short because its items are wrong, which is told already."""
    loc = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in problems
    )


_MUST_BE = {
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping of keys to values"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "string_type": "text",
    "finite_number": "a finite number",
}


def _explain(raw: Mapping[str, Any], problem: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["loc"] if part != "[key]") or "the configuration"
    kind, got, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_keys(problem["loc"][:-1])
        key = str(problem["loc"][-1])
        return f"{where} is not a known key{did_you_mean(key, known)}. Allowed here: {', '.join(known)}"
    if kind == "missing":
        return f"{where} is missing"
    if kind == "value_error":
        message = str(context["error"])
        return f"{where}: {message}" if problem["loc"] else message
    if kind == "string_pattern_mismatch":
        return f"{where} may hold letters, digits, '_', '.' and single '-' (got {_short(got)})"
    if kind == "too_short":
        return f"{where}: must have at least {context['min_length']} entry (got {_short(got)})"
    if kind == "string_too_long":
        return f"{where}: must have at most {context['max_length']} characters (got {len(got)}); shorten it"
    if kind in _MUST_BE:
        quotable = kind == "string_type" and got is not None and not isinstance(got, list | tuple | Mapping)
        return f"{where}: must be {_MUST_BE[kind]} (got {_told(got)}){'; quote it' if quotable else ''}"
    message = problem["msg"].replace("Input should be", "must be")
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
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def _told(value: Any) -> str:
    """A value as YAML's author would know it: a date by its day, not by Python's word for it."""
    if isinstance(value, datetime.date):  # a datetime is one, too
        return f"the date {value}"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return _short(value)
