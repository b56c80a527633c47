"""The model of an experiment's configuration, `config.yaml`.

It rejects unknown keys and has every default. The docstring under a field is its documentation and becomes the JSON
schema's description. Site facts (partitions, walltime, cores) belong to a profile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from common.messages import did_you_mean, short_repr
from common.published import as_number, check_option_name, check_published, check_variable
from common.verdicts import FIRST_LOOK
from trainers.registry import brings_work
from trainers.section import CURRENCY_PATTERN, Count, Environment, Name, Number, Options, PositiveInt, Section, Seed
from trainers.workload import TrainedArm, Workload
from workflow.config.imports import Import, ImportField, may_hold_several_runs, normalize_import, sources_of


class Shared(Section):
    """Settings that all arms of one trainer share; an arm's own settings win."""

    options: Options = {}
    """Like an arm's `options`."""
    env: Environment = {}
    """Like an arm's `env`."""


class Envs(Section):
    """How stacks are built: the source of compilers and Python. Pins do not change."""

    backend: Literal["auto", "conda", "uv"] = "auto"
    """`conda`: Python, CUDA toolkit and compilers from conda-lock.yml; `uv`: only the pip packages, with an existing
    Python; `auto`: conda if the stack has such a lock and micromamba, mamba or conda is installed."""


def _allow_same_as(schema: dict[str, Any]) -> None:
    """Tells editors that an arm with `same_as` needs no other key."""
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["same_as"]}]


class Arm(TrainedArm, json_schema_extra=_allow_same_as):
    """What is compared: a trainer with an engine in a stack, and its own options. An arm is trained or, with `import`,
    read from logs of runs that were trained elsewhere."""

    import_: ImportField = Field(default=None, alias="import")
    """Existing runs to read instead of a training: a file, a folder or `wandb:entity/project/id`, a list of those (one
    run each), or a section that describes the runs."""
    same_as: str | None = None
    """An A/A arm: repeats the named arm, so it gets no verdict, and a difference is reported. It takes every setting
    from that arm and has no other keys; if that arm is imported, it needs its own `import`."""

    @model_validator(mode="after")
    def _has_a_stack(self) -> Arm:
        if not self.stack and self.import_ is None and not brings_work(self.trainer):
            raise ValueError("stack is missing; only an arm with import, or of trainer command, may omit it")
        return self


class Report(Section):
    """Additional content of the report."""

    price_per_gpu_hour: Annotated[Number, Field(gt=0)] | None = None
    """The price of one GPU-hour, to report the cost of the GPU-hours used; null: no costs."""
    currency: Annotated[str, Field(pattern=CURRENCY_PATTERN)] = "USD"
    """The price's currency, as three letters."""
    to_steps: PositiveInt | None = None
    """Also report the GPU-hours of this many training steps, and with a price their cost; null: only those used."""
    spread: Annotated[Number, Field(gt=0, lt=1)] | None = None
    """How far repeated runs may differ, as a share: how likely the ratio of one run an arm is rests on it; null: 0.16
    (docs/estimates.md)."""

    def as_json(self) -> dict[str, Any]:
        """The content for plan.json; a newer setting is included only if set, so that old plans do not change."""
        return self.model_dump(mode="json", exclude=set() if self.spread else {"spread"})


class Until(Section):
    """Pairs of runs are added until each verdict is resolved: one arm is faster, or both are equal within a ratio."""

    until: Annotated[Number, Field(gt=1)]
    """The ratio from which a difference matters, such as 1.05 for 5%."""
    most: Annotated[int, Field(strict=True, ge=2, le=1000)]
    """The most pairs of runs; the seeds are 0, 1, 2 and so on. After each pair the error of all looks together is 5%
    (docs/estimates.md). Runs have the same fingerprints as with these seeds in a list."""

    @property
    def least(self) -> int:
        """The pairs of runs before the first look."""
        return FIRST_LOOK


def _kind_of_seeds(value: Any) -> str:
    return SEEDS_UNTIL if isinstance(value, Mapping | Until) else SEEDS_LISTED


# Tags of the union; error messages leave them out.
SEEDS_LISTED, SEEDS_UNTIL = "(listed)", "(until)"
Seeds = Annotated[
    Annotated[tuple[Seed, ...], Field(min_length=1), Tag(SEEDS_LISTED)] | Annotated[Until, Tag(SEEDS_UNTIL)],
    Discriminator(_kind_of_seeds),
]


class Config(Section):
    """An experiment: its arms, their common workload, and the sweep."""

    experiment: Name
    """Name of the experiment; its results are in `results/<experiment>/`."""
    description: Annotated[str, Field(max_length=5_000)] = ""
    """One or two sentences for the report's reader."""
    arms: dict[Name, Arm] = Field(min_length=1)
    """The compared arms by name. A name has at most 40 letters (A-Z, a-z), digits, `_`, `.` and single `-`."""
    baseline: str
    """The arm that the others are compared with."""
    workload: Workload | None = None
    """The task that every arm trains; required if any arm is trained. Arms of trainer command bring their own."""
    shared: dict[str, Shared] = {}
    """`options` and `env` that all arms of a trainer share, by the trainer's name; an arm's own win."""
    envs: Envs = Envs()
    """How the stacks are built."""
    sweep: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = {}
    """Factors: a dotted path (`workload.temperature`, `arms.vllm.options.vllm_max_num_seqs`) with a list of values.
    All combinations are run; a factor of one arm's options multiplies only that arm's runs."""
    seeds: Seeds = (0,)
    """One run per arm, factor combination and seed: a list of seeds, or `{until: 1.05, most: 8}`."""
    warmup_steps: Count = 1
    """Steps at the start of each run that are shown but not counted, fixed before anything is measured. Must be less
    than `workload.steps`."""
    report: Report = Report()
    """Additional content of the report; it changes no run."""

    @model_validator(mode="before")
    @classmethod
    def _expand_same_as(cls, raw: Any) -> Any:
        arms = raw.get("arms") if isinstance(raw, Mapping) else None
        if not isinstance(arms, Mapping):
            return raw
        return {**raw, "arms": {name: _expanded(name, arm, arms) for name, arm in arms.items()}}

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: tuple[int, ...] | Until) -> tuple[int, ...] | Until:
        if not isinstance(seeds, Until) and len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds must differ (got {list(seeds)})")
        return seeds

    @field_validator("sweep")
    @classmethod
    def _sweep_can_be_published(cls, sweep: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        for path, values in sweep.items():
            # Checked here too: the error of a run's arm would show the value.
            keys = path.split(".")
            for key in keys[3:] if keys[0] == "arms" else ():
                (check_variable if keys[2] == "env" else check_option_name)(key, path)
            for index, value in enumerate(values):
                check_published(value, f"{path}[{index}]")
            if len({json.dumps(as_number(value), sort_keys=True) for value in values}) < len(values):
                raise ValueError(f"{path}: the sweep lists the same value twice (got {short_repr(list(values))})")
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
            # An arm's name selects its rows in a table of several runs.
            sources = [source for run in arm.import_.runs for source in run.source] if arm.import_ else []
            selects = any(map(may_hold_several_runs, sources))
            first = seen.setdefault(arm.model_dump_json() + name * selects, name)
            if first != name:
                raise ValueError(
                    f"arms {first} and {name} are identical; change one's engine, stack or options, or remove it "
                    f"(to measure the noise of equal runs, give more seeds, or write only same_as: {first} in {name})"
                )
        needy = [name for name in self.trained if not brings_work(self.arms[name].trainer)]
        if needy and self.workload is None:
            raise ValueError(f"workload is missing; trained arms need it: {', '.join(needy)}")
        if self.until is not None and len(self.arms) < 2:
            raise ValueError("seeds: until needs a second arm to compare (got one arm); list the seeds (seeds: [0, 1])")
        return self

    @model_validator(mode="after")
    def _sources_differ(self) -> Config:
        seen: dict[str, tuple[str, str]] = {}
        for where, source, identity in sources_of(self.imports):
            if identity in seen:
                first, written = seen[identity]
                # The reader of the table separates the runs, or rejects the rows.
                if first != where and may_hold_several_runs(source):
                    continue
                raise ValueError(
                    f"{first} and {where} have the same source ({short_repr(written)} and {short_repr(source)}): a run "
                    "counts once, so give each its own source, or remove one"
                )
            seen[identity] = where, source
        return self

    @model_validator(mode="after")
    def _shared_is_used(self) -> Config:
        trainers = sorted({arm.trainer for arm in self.arms.values()})
        for trainer in self.shared:
            if trainer not in trainers:
                raise ValueError(
                    f"shared.{trainer}: no arm has that trainer{did_you_mean(trainer, trainers)}; "
                    f"trainers of the arms: {', '.join(trainers)}"
                )
        return self

    @property
    def imports(self) -> dict[str, Import]:
        """The imports by arm name."""
        return {name: arm.import_ for name, arm in self.arms.items() if arm.import_ is not None}

    @property
    def until(self) -> Until | None:
        """When to stop adding pairs of runs; None if the seeds are listed."""
        return self.seeds if isinstance(self.seeds, Until) else None

    @property
    def every_seed(self) -> tuple[int, ...]:
        """The seeds of all runs that may be trained."""
        return tuple(range(self.seeds.most)) if isinstance(self.seeds, Until) else self.seeds

    @property
    def trained(self) -> list[str]:
        """The names of the trained arms."""
        return [name for name, arm in self.arms.items() if arm.import_ is None]

    def arm(self, name: str) -> Arm:
        """An arm with its trainer's shared settings."""
        arm = self.arms[name]
        shared = self.shared.get(arm.trainer, Shared())
        options, env = merged(shared.options, arm.options), {**shared.env, **arm.env}
        return arm.model_copy(update={"options": options, "env": env})


def _expanded(name: Any, arm: Any, arms: Mapping[Any, Any]) -> Any:
    """The arm with the settings of the arm in its `same_as`; an arm without `same_as` does not change."""
    if not isinstance(arm, Mapping) or arm.get("same_as") is None:
        return arm
    where, other = f"arms.{name}.same_as", arm["same_as"]
    original = arms.get(other) if isinstance(other, str) else None
    others = [str(known) for known in arms if known != name]
    if other == name or other not in arms:
        raise ValueError(
            f"{where} must be another arm: {', '.join(others) or 'there is none'} (got {short_repr(other)})"
            f"{did_you_mean(str(other), others)}"
        )
    if not isinstance(original, Mapping):
        return arm
    if original.get("same_as") is not None:
        raise ValueError(
            f"{where} must be an arm without same_as (got {other!r}, which repeats {original['same_as']!r}); "
            f"write same_as: {original['same_as']}"
        )
    if more := [str(key) for key in arm if key not in ("same_as", "import")]:
        raise ValueError(
            f"{where}: the arm takes every setting from {other} and must have no other keys (got {', '.join(more)}); "
            "remove those, or same_as"
        )
    if (original.get("import") is None) != (arm.get("import") is None):
        raise ValueError(
            f"{where}: {other} is imported, so this arm needs its own import"
            if arm.get("import") is None
            else f"{where}: {other} is trained, so this arm is too; remove import, or same_as"
        )
    expanded = {**original, **arm}
    if "import" in arm:
        facts, own = normalize_import(original["import"]), normalize_import(arm["import"])
        expanded["import"] = {**facts, **own} if isinstance(facts, Mapping) and isinstance(own, Mapping) else own
    return expanded


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two nested mappings; values of the second win."""
    both = {
        key: merged(under[key], over[key])
        for key in under.keys() & over.keys()
        if isinstance(under[key], Mapping) and isinstance(over[key], Mapping)
    }
    return {**under, **over, **both}


def config_schema() -> str:
    """The JSON schema of config.yaml, as committed."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Config.model_json_schema()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
