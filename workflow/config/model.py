"""The model of an experiment's configuration.

One frozen model of `config.yaml`: unknown keys are refused, every default is here, and the docstring under a field
is its documentation (it becomes the JSON schema's description). Site facts (partitions, walltime, cores) are not
here: they belong to a profile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from common.messages import did_you_mean, short_repr
from common.published import as_number, check_option_name, check_published, check_variable
from trainers.registry import trainer_named
from trainers.section import CURRENCY_PATTERN, Count, Environment, Name, Number, Options, PositiveInt, Section, Seed
from trainers.workload import TrainedArm, Workload
from workflow.config.imports import Import, ImportField, may_hold_several_runs, normalize_import, sources_of


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


class Arm(TrainedArm, json_schema_extra=_or_a_repetition):
    """What is compared: a trainer with an engine in a stack, and its own options. An arm is trained, or, with `import`,
    read from what runs elsewhere have logged."""

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
    explain: dict[Name, Annotated[tuple[Name, ...], Field(min_length=2)]] = {}
    """Which arms' raw ratio is taken apart, and by which replays, in order: that of the baseline's engine, perhaps
    others on the way, that of the arm's own engine (`sglang: [vllm-alone, sglang-alone]`)."""
    cpu_memory_gb_s: Annotated[Number, Field(gt=0)] | None = None
    """The machine's measured memory bandwidth in GB/s: runs without a GPU have a decode floor by it; null: none."""

    def as_json(self) -> dict[str, Any]:
        """As plan.json has it: what came later stands there only where it is asked for, so that old plans stay."""
        return self.model_dump(mode="json", exclude={n for n in ("explain", "cpu_memory_gb_s") if not getattr(self, n)})


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
                    f"{first} and {where} have the same source ({short_repr(written)} and {short_repr(source)}): a run "
                    "is counted once, so give each its own, or remove one"
                )
            seen[same] = where, source
        return self

    @model_validator(mode="after")
    def _replays_explain_trainings(self) -> Config:
        for name, chain in self.report.explain.items():
            where = f"report.explain.{name}"
            trained = [one for one, arm in self.arms.items() if trainer_named(arm.trainer).trains]
            if name not in trained or self.baseline not in trained or name == self.baseline:
                raise ValueError(
                    f"{where}: an arm that trains is explained against a baseline that trains (the baseline is "
                    f"{self.baseline}; arms that train: {', '.join(trained) or 'none'})"
                )
            alone = [one for one in self.arms if one not in trained]
            if wrong := [one for one in chain if one not in alone] or [o for o in chain if chain.count(o) > 1]:
                raise ValueError(
                    f"{where} must list different arms of trainer replay: {', '.join(alone) or 'there is none'} (got "
                    f"{wrong[0]!r}){did_you_mean(wrong[0], alone)}"
                )
            for end, replay in ((self.baseline, chain[0]), (name, chain[-1])):
                if self.arms[end].engine != self.arms[replay].engine:
                    raise ValueError(
                        f"{where}: {replay} replays engine {self.arms[replay].engine}, and {end} has "
                        f"{self.arms[end].engine}; the list begins with a replay of the baseline's engine and ends "
                        "with one of the arm's"
                    )
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
            f"{where} must be another arm: {', '.join(others) or 'there is none'} (got {short_repr(other)})"
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
        facts, own = normalize_import(one["import"]), normalize_import(arm["import"])
        whole["import"] = {**facts, **own} if isinstance(facts, Mapping) and isinstance(own, Mapping) else own
    return whole


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings as one; where both have a value, the second's."""
    both = {
        key: merged(under[key], over[key])
        for key in under.keys() & over.keys()
        if isinstance(under[key], Mapping) and isinstance(over[key], Mapping)
    }
    return {**under, **over, **both}
