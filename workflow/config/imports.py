"""The model of `import:`, which reads runs that were trained elsewhere from their logs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from common.messages import short_repr, yaml_repr
from common.published import as_number, check_published
from trainers.registry import trainers
from trainers.section import Count, PositiveInt, Section, Seed

WANDB = "wandb:"
# Each part becomes a cache folder (analysis/sources/wandb_api.py), so none begins with a dot.
_WANDB_PART = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_WANDB_RUN = re.compile(rf"wandb:{_WANDB_PART}(/{_WANDB_PART}){{2}}")

# The trainers' own formats and loops, and the common ones. mypy does not accept a Literal of computed names.
if TYPE_CHECKING:
    Format = str
    Mode = str
else:
    _OWN = dict.fromkeys(form.name for trainer in trainers() for form in trainer.logs.formats if form.read is not None)
    Format = Literal[("wandb", "wandb-offline", "tensorboard", *_OWN, "table")]
    Mode = Literal[("", "sync", *dict.fromkeys(tree.mode for trainer in trainers() for tree in trainer.logs.trees))]


def is_remote(source: str) -> bool:
    """True if the source is at wandb, not on this machine."""
    return source.startswith(WANDB)


def local_path(source: str) -> Path:
    """A local source as a path; an unknown `~name` stays unchanged."""
    try:
        return Path(source).expanduser()
    except RuntimeError:
        return Path(source)


def _checked(source: str) -> str:
    if not source.strip():
        raise ValueError("must not be empty; give a file, a folder or wandb:entity/project/id")
    if is_remote(source) and not _WANDB_RUN.fullmatch(source):
        raise ValueError(f"must be wandb:entity/project/id, as in the run's wandb address (got {short_repr(source)})")
    if "://" in source:
        raise ValueError(f"must be a file, a folder or wandb:entity/project/id, no URL (got {short_repr(source)})")
    return source


Source = Annotated[str, Field(max_length=4096), AfterValidator(_checked)]


class ImportedRun(Section):
    """One run that was trained elsewhere: its logs, and its place in the comparison."""

    source: Annotated[
        tuple[Source, ...],
        Field(min_length=1),
        BeforeValidator(
            lambda given: [given] if isinstance(given, str) else given, json_schema_input_type=str | list[str]
        ),
    ]
    """A file, a folder or `wandb:entity/project/id`; or a list of those with logs of one run, which are joined step by
    step."""
    seed: Seed | None = None
    """The run's seed, which names it in its arm. Default: counted from 0."""
    factors: dict[str, Any] = {}
    """The run's values in a sweep (`workload.temperature: 0.9`): runs of equal factors are compared."""

    @field_validator("factors")
    @classmethod
    def _factors_can_be_published(cls, factors: dict[str, Any]) -> dict[str, Any]:
        check_published(factors)
        if any(not all(path.split(".")) for path in factors):
            raise ValueError(f"a factor must be a path such as workload.temperature (got {short_repr(list(factors))})")
        return {path: as_number(value) for path, value in factors.items()}


def _release(version: str) -> str:
    """The release of a version or tag."""
    return re.sub(r"^v(?=\d)", "", version)


_Run = Annotated[
    ImportedRun,
    BeforeValidator(
        lambda given: {"source": given} if isinstance(given, str) else given, json_schema_input_type=str | ImportedRun
    ),
]


class Import(Section):
    """Runs that were trained elsewhere: the arm is read from their logs and not trained."""

    version: Annotated[str, Field(max_length=40), AfterValidator(_release)] | None = None
    """The trainer's version; null: the stack's, if the arm has a stack, else the version in the source."""
    mode: Mode = ""
    """The trainer's loop, which decides what its timers mean; empty: detected from the source or its timers, else the
    version's usual loop. `sync` selects verl's synchronous loop; `native` selects TRL's and ms-swift's own timers."""
    format: Format | None = None
    """The source's format; null: detected from its content."""
    step_seconds: Annotated[str, Field(max_length=200)] | None = None
    """A table's column with the step's seconds, or a sum such as `A+B`; null: the one that docs/import.md names."""
    unit: Literal["s", "ms", "us", "min"] | None = None
    """The unit of that column; null: what its name says, else seconds."""
    gpu: Annotated[str, Field(max_length=40)] | None = None
    """The GPU that the run used, such as `H100-80GB`; null: the workload's. An unknown GPU is never guessed."""
    nodes: PositiveInt | None = None
    """Nodes of a run; null: the workload's."""
    gpus_per_node: Count | None = None
    """GPUs of each node; null: the workload's."""
    tensor_parallel: PositiveInt | None = None
    """GPUs of one engine; null: the value of the arm's options."""
    model: Annotated[str, Field(max_length=400)] | None = None
    """The model's hub id or local folder; null: the workload's."""
    batch_size: PositiveInt | None = None
    """Completions per training step; null: the workload's."""
    max_response_length: PositiveInt | None = None
    """Longest completion, in tokens; null: the workload's."""
    runs: tuple[_Run, ...] = Field(min_length=1)
    """The runs, one for each seed and combination of factors; each is a source or a section."""

    @property
    def unset(self) -> set[str]:
        """The rare settings that are not set; plans and specs are without them."""
        return {name for name in ("step_seconds", "unit") if getattr(self, name) is None}

    @field_validator("runs")
    @classmethod
    def _runs_differ(cls, runs: tuple[ImportedRun, ...]) -> tuple[ImportedRun, ...]:
        given = {(run_point(run.factors), run.seed) for run in runs}
        seeded: list[ImportedRun] = []
        taken: dict[tuple[str, int | None], int] = {}
        for index, run in enumerate(runs):
            point = run_point(run.factors)
            if run.seed is None:
                free = next(seed for seed in range(len(runs) + 1) if (point, seed) not in given)
                given.add((point, free))
                run = run.model_copy(update={"seed": free})
            first = taken.setdefault((point, run.seed), index)
            if first != index:
                with_factors = f" and factors {run.factors}" if run.factors else ""
                raise ValueError(
                    f"runs {first} and {index} have the same seed{with_factors} (got {run.seed}); give each its own "
                    "seed, or, if they are files of one run, list both as its source"
                )
            seeded.append(run)
        return tuple(seeded)


def may_hold_several_runs(source: str) -> bool:
    """True if the source's name is a table's: its rows may belong to several runs."""
    return not is_remote(source) and local_path(source).suffix.lower() in (".csv", ".tsv")


def run_point(factors: Mapping[str, Any]) -> str:
    """The text that identifies a combination of factors."""
    return json.dumps(factors, sort_keys=True)


def normalize_import(given: Any) -> Any:
    """An `import:` of any allowed form as a section."""
    if isinstance(given, str):
        return {"runs": [given]}
    if isinstance(given, list | tuple):
        for source in given:
            if not isinstance(source, str):
                raise ValueError(
                    f"a list must have one source for each run (got {yaml_repr(source)}); for more settings write "
                    "import: {runs: [{source: [...], seed: 0}]}"
                )
        return {"runs": given}
    if given is not None and not isinstance(given, Mapping | Import):
        raise ValueError(
            f"must be a file, a folder or wandb:entity/project/id, a list of those, or a section "
            f"(got {yaml_repr(given)})"
        )
    return given


ImportField = Annotated[
    Import | None, BeforeValidator(normalize_import, json_schema_input_type=str | list[str] | Import | None)
]


def sources_of(imports: Mapping[str, Import]) -> Iterator[tuple[str, str, str]]:
    """Every source: its key in the configuration, its text, and an identity that is equal for the same source."""
    for arm, imported in imports.items():
        for index, run in enumerate(imported.runs):
            for source in run.source:
                identity = source if is_remote(source) else os.path.normpath(local_path(source).absolute())
                yield f"arms.{arm}.import.runs.{index}", source, identity
