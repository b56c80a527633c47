"""Defines the JSON and parquet files that the parts exchange, and reads them.

A `TypedDict` is the only definition of a file. Writers build it, `read_file` returns it, and mypy checks both sides.
`make docs` generates the tables of docs/files.md from it. findings.py defines preflight.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

from common.errors import UserError
from common.files import read_json_object
from common.json_types import NotRequired, describe_type, fits

Object = dict[str, Any]


class PlanFile(TypedDict):
    """`results/<experiment>/plan.json`, written by the rule `plan`: the runs to compare."""

    experiment: Annotated[str, "the experiment's name"]
    description: Annotated[str, "the experiment's purpose"]
    baseline: Annotated[str, "the arm that the others are compared with"]
    arms: Annotated[dict[str, Object], "as in config.yaml; imported arms have `import`, repeated ones `same_as`"]
    sweep: Annotated[dict[str, list[Any]], "the values of each factor, by dotted path"]
    seeds: Annotated[list[int], "the seeds of the trained runs; with `most` those that may be trained"]
    until: NotRequired[Annotated[float, "the ratio to which a verdict is resolved, with `seeds: {until, most}`"]]
    most: NotRequired[Annotated[int, "the most pairs of runs, with `seeds: {until, most}`"]]
    warmup_steps: Annotated[int, "first steps of each run that are not counted"]
    report: Annotated[Object, "the report's options (docs/configuration.md)"]
    fingerprint: Annotated[str, "sha256 of all runs and the report's options, 64 hex digits"]
    runs: Annotated[list[str], "the ids of all runs"]
    imports: Annotated[list[str], "ids of the imported runs"]
    fingerprints: Annotated[dict[str, str], "each run's fingerprint; the report skips a run with a different one"]


class ResolutionInFile(TypedDict):
    """An arm at one factor combination in a look's file."""

    arm: Annotated[str, "the arm"]
    factors: Annotated[str, "the factor combination, as canonical JSON"]
    verdict: Annotated[str, "`+`, `-`, `=`, `~` or `x`, as in verdict.json"]
    value: Annotated[float | None, "the ratio"]
    interval: Annotated[list[float | None], "its two ends, valid however often the runs are looked at"]
    more: Annotated[int, "further pairs of runs that are likely to resolve it; 0 if none is needed, or none is left"]


class LookFile(TypedDict):
    """`results/<experiment>/looks/<pairs>.json`, written after so many pairs of runs with `seeds: {until, most}`."""

    pairs: Annotated[int, "pairs of runs"]
    runs: Annotated[list[str], "ids of their runs"]
    until: Annotated[float, "the ratio to which a verdict is resolved"]
    most: Annotated[int, "the most pairs of runs"]
    more: Annotated[int, "the largest `more` of all arms; 0: no further pair is trained"]
    verdicts: Annotated[list[ResolutionInFile], "each arm that is compared, at each factor combination"]


class ImportFacts(TypedDict):
    """What the configuration declares about an imported run; null where it declares nothing."""

    sources: Annotated[list[str], "files, folders or wandb:entity/project/id of one run, joined by step"]
    format: Annotated[str | None, "the sources' format; null: detect it"]
    version: Annotated[str | None, "the trainer's release"]
    mode: Annotated[str | None, "the trainer's loop, if its release has several"]
    gpu: Annotated[str | None, "the GPU's name"]
    nodes: Annotated[int | None, "number of nodes"]
    gpus_per_node: Annotated[int | None, "GPUs of each node"]
    tensor_parallel: Annotated[int | None, "GPUs that share one copy of the engine's model"]
    model: Annotated[str | None, "the model"]
    batch_size: Annotated[int | None, "completions per step"]
    max_response_length: Annotated[int | None, "maximum tokens of a completion"]


# `import` is a Python keyword, so the class syntax cannot declare it.
_Import = TypedDict("_Import", {"import": NotRequired[Annotated[ImportFacts, "for an imported run: see below"]]})


SPEC_VERSION = 1


class SpecFile(_Import):
    """`runs/<run_id>/spec.json`, written by the launcher: a run's fully resolved settings."""

    spec_version: Annotated[int, "1"]
    experiment: Annotated[str, "the experiment's name"]
    run_id: Annotated[str, "the run's id, made of arm, factors and seed"]
    arm: Annotated[str, "the run's arm"]
    trainer: Annotated[str, "the arm's trainer"]
    engine: Annotated[str, "the arm's engine"]
    stack: Annotated[str, "the stack's name; empty for an imported run"]
    seed: Annotated[int, "the seed; for an imported run the declared one"]
    factors: Annotated[Object, "the run's value of each factor, by dotted path"]
    workload: Annotated[Object, "as in config.yaml, with defaults; {} for an imported run without a declared workload"]
    options: Annotated[Object, "the arm's options"]
    env: Annotated[dict[str, str], "the arm's environment variables"]
    trainer_args: Annotated[Object, "the trainer's own settings, translated from the keys above"]
    job_module: NotRequired[Annotated[str, "the module that trains in the stack (hashed: never rename it)"]]
    ray: NotRequired[Annotated[bool, "whether Ray starts its processes"]]
    spread: NotRequired[Annotated[str, "`torchrun` or `server` if it trains in several processes"]]
    server: NotRequired[
        Annotated[Object, "the engine server: `module`, `gpus`, and `patience_s` until its first answer"]
    ]
    least_cpus: NotRequired[Annotated[int, "minimum CPUs of all nodes together; with fewer the run never starts"]]
    lock_id: NotRequired[Annotated[str, "first 12 hex digits of the hash of the stack's lock"]]
    inputs_id: NotRequired[Annotated[str, "name of the folder with its data and model"]]
    fingerprint: Annotated[str, "sha256 of all the other keys, 64 hex digits"]


class InputsSha256(TypedDict):
    """Hashes of a run's data and model, and one hash of all its reward models."""

    data_sha256: str
    model_sha256: str
    reward_models_sha256: NotRequired[str]


class SlurmPlace(TypedDict):
    """The Slurm allocation of an attempt."""

    job_id: str
    restart: int
    nodes: str


class AttemptFile(TypedDict):
    """`attempts/<n>/attempt.json`, written by the job on the node: the inputs of one attempt."""

    attempt: Annotated[int, "the attempt's number, from 1"]
    run_id: Annotated[str, "the run's id"]
    fingerprint: Annotated[str, "the fingerprint of its spec.json"]
    spec: Annotated[str, "absolute path of its spec.json"]
    inputs: Annotated[str, "absolute path of inputs.json"]
    inputs_sha256: Annotated[InputsSha256, "hashes of the data and the model to train"]
    attempt_dir: Annotated[str, "absolute path of its folder"]
    checkpoint_dir: Annotated[str, "absolute path, shared by attempts of the same fingerprint and inputs"]
    cpus: Annotated[int, "CPUs of this node that the attempt may use"]
    cwd: Annotated[str, "working directory: the repository"]
    command: Annotated[list[str], "the command that the job runs"]
    env: Annotated[dict[str, str], "the arm's environment variables"]
    job: NotRequired[Annotated[int, "number of the submission, by earlier releases"]]
    host: Annotated[str, "the node's name"]
    started: Annotated[float, "seconds since 1970"]
    slurm: Annotated[SlurmPlace | None, "job_id, restart and nodes; null without Slurm"]
    output_bytes: Annotated[int, "size of the job's own output when this attempt began"]
    nodes: NotRequired[Annotated[list[str], "Slurm's names of its nodes; else the host's name"]]
    git: NotRequired[Annotated[Object | None, "commit and dirty flag of the code when the attempt began"]]


class DoneFile(TypedDict):
    """`attempts/<n>/done.json`, the last file that a job writes; `runs/<run_id>/done.json` is a copy."""

    run_id: Annotated[str, "whose run"]
    fingerprint: Annotated[str, "the fingerprint of its spec.json"]
    attempt: Annotated[int, "the attempt that finished"]
    first_step: Annotated[int, "this attempt's first step; `last_step` + 1 if earlier attempts did all steps"]
    last_step: Annotated[int, "the run's last step"]
    steps: Annotated[int, "number of steps that this attempt did"]
    started: Annotated[float, "seconds since 1970"]
    finished: Annotated[float, "seconds since 1970"]
    inputs: Annotated[InputsSha256, "hashes of the data and the model that were used"]
    versions: Annotated[dict[str, str], "Python and the installed packages that matter"]
    hardware: Annotated[Object, "host, cpu, cpus, threads (of torch), affinity, memory_gib, gpus, driver, cuda"]
    resolved: Annotated[
        Object,
        "final settings of the trainer and, as reported at its start, of the engine; variables that affect speed",
    ]
    git: Annotated[Object | None, "commit and dirty flag of the code when the attempt began"]
    measurement: NotRequired[Annotated[int, "the version of what its clocks contain; 1 if it is missing"]]
    stack_origin: NotRequired[Annotated[Object, "env/origin.json and the stack's state"]]
    trained_as: NotRequired[
        Annotated[
            Object,
            "of a run that finished under another name: the `run` (its folder), `attempt` and `fingerprint` as it was "
            "trained; the files of its attempts are links to those, or copies",
        ]
    ]


class ImportedSource(TypedDict):
    """One source of an imported run."""

    source: Annotated[str, "as the configuration writes it"]
    format: Annotated[str, "the detected or declared format"]
    sha256: Annotated[str | None, "hash of a file; else null"]
    bytes: Annotated[int | None, "size of a file; else null"]
    steps: Annotated[int, "number of steps in it"]
    selected: Annotated[dict[str, str] | None, "in a table of several runs: the column values of the selected rows"]


class LaterSettings(TypedDict):
    """An entry of `later` in imported.json: a configuration that the run went on with."""

    from_step: Annotated[int, "the first step with it"]
    changed: Annotated[dict[str, list[Any]], "by dotted key, the first configuration's value and its own"]
    resolved: Annotated[Object, "the whole configuration"]


class ImportedFile(TypedDict):
    """`runs/<run_id>/imported.json`, written by analysis.imports: done.json of an imported run.

    A run of trainer `command` has both; `workflow.launch_scripts.log` writes it from the run's own log.
    """

    run_id: Annotated[str, "whose run"]
    fingerprint: Annotated[str, "the fingerprint of its spec.json"]
    imported: Annotated[bool, "true"]
    first_step: Annotated[int, "first step that has a row, which may lack its time"]
    last_step: Annotated[int, "last step read"]
    steps: Annotated[int, "number of steps read"]
    versions: Annotated[dict[str, str], "release of the trainer, and of other packages in the sources"]
    hardware: Annotated[Object, "as in done.json; {} if no source has it"]
    resolved: Annotated[Object, "the run's full configuration from a source, at its first step, or {}"]
    later: NotRequired[
        Annotated[list[LaterSettings], "the configurations of later steps that differ in more than names and places"]
    ]
    command: Annotated[Object, "without one: the settings that a printed start command gives, by dotted key, or {}"]
    engine: NotRequired[Annotated[Object, "what its log prints of the engine at its start, by the engine's own names"]]
    git: Annotated[Object | None, "of the code that ran; null if no source has it"]
    started: Annotated[float | None, "seconds since 1970"]
    finished: Annotated[float | None, "seconds since 1970"]
    sources: Annotated[list[ImportedSource], "the sources that were read: see below"]
    clock: Annotated[str, "`wall` if a step's seconds are the wall clock between two logged steps; else empty"]
    column: Annotated[
        Object | None,
        "of a plain table: the `name` of the column with the step's seconds, without its unit, and the `unit`, null if "
        "neither the name nor the user says it; else null",
    ]
    read_as: NotRequired[
        Annotated[
            Object, "of a script's run: what its log says instead of its spec (trainer, engine, import), and doubts"
        ]
    ]


class MetricsLine(TypedDict):
    """A line of `attempts/<n>/metrics.jsonl`, written and flushed after each training step.

    Readers ignore an incomplete last line. Numbers that are missing or not finite are null.
    """

    step: Annotated[int, "from 1"]
    time: Annotated[float, "seconds since 1970"]
    resumed: Annotated[bool, "whether this is an attempt's first step after a checkpoint"]
    phases: Annotated[Mapping[str, float | None], "seconds by path in the timer tree, with parents; {} for verl"]
    scalars: Annotated[dict[str, Any], "numbers under the names of the trainer and of wandb"]
    samples: Annotated[Mapping[str, list[int]], "`response_length`: tokens of each completion"]


class Sample(TypedDict):
    """One prompt's completion in samples.jsonl."""

    row: Annotated[int, "the prompt's row, from 0: in the source; of verl's validation in the prepared data"]
    prompt: Annotated[list[Object], "the conversation: role and content of each message, shortened like `completion`"]
    completion: Annotated[str, "the text without special tokens; over 10,000 characters the middle is cut"]
    characters: Annotated[int, "characters of the full text"]
    tokens: Annotated[int, "tokens, without the end token"]
    cut_off: Annotated[bool, "whether `max_response_length` cut it off"]
    rewards: Annotated[Mapping[str, float | None], "each reward before its weight; null if it has no value"]


class SamplesLine(TypedDict):
    """A line of `attempts/<n>/samples.jsonl`, of the start, the middle and the end of training."""

    step: Annotated[int, "the step of the batch: 1, about half, or the last; before verl's validation: 0, half, all"]
    steps: Annotated[int, "steps of the run"]
    how: Annotated[str, "the generator and its sampling settings"]
    problem: Annotated[str | None, "why completions or rewards are missing; null without a problem"]
    samples: Annotated[
        list[Sample], "of the first `workload.samples` prompts; of a batch of the training the first of each"
    ]


class StepRow(TypedDict):
    """A row of `runs/<run_id>/steps.parquet`, written by analysis.collect and analysis.imports."""

    run_id: Annotated[str, "the run's id"]
    arm: Annotated[str, "the run's arm"]
    seed: Annotated[int, "the run's seed", "int64"]
    attempt: Annotated[int, "the attempt; 1 for an imported run"]
    step: Annotated[int, "the training step, from 1"]
    kind: Annotated[str, "`phase`, `scalar` or `sample`"]
    name: Annotated[str, "the phase's path, or the metric's name"]
    parent: Annotated[str | None, "of a phase: the nearest timed ancestor; null for a root"]
    value: Annotated[float, "in full precision; NaN if the source has no finite number"]
    unit: Annotated[str, "`s` or `tokens` if known; else `1`"]
    exclusive_s: Annotated[float | None, "of a phase: its seconds minus those of its children"]
    resumed: Annotated[bool, "whether this is the attempt's first step after a checkpoint"]
    overlap: Annotated[bool, "whether an earlier attempt also trained this step"]
    rounding: Annotated[float | None, "half a unit of the last printed digit; null for full precision"]
    source_file: Annotated[str, "file of the value, relative to the run's folder; else as the import writes it"]
    source_line: Annotated[int, "line in that file; in a wandb file the record's number"]


FileT = TypeVar("FileT")
# A history reads thousands of files, and resolving a kind's annotations takes longer than reading one.
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def read_file(kind: type[FileT], path: Path, made_by: str, needs: Iterable[str] = ()) -> FileT:
    """Read a JSON file; `UserError` if it is missing, not an object, or lacks a key in `needs`."""
    raw, hints = read_json_object(path, made_by), _hints(kind)
    for key in needs:
        if key not in raw or not fits(raw[key], hints[key]):
            got = repr(raw[key])[:200] if key in raw else "nothing"
            raise UserError(f"{path}: {key} must be {describe_type(hints[key])} (got {got}); {made_by} makes it")
    return raw  # type: ignore[return-value]
