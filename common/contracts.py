"""Defines the files between the parts: the keys of each, what they hold, and how they are read.

A file's `TypedDict` is its one definition. Writers build it, readers get it from `read_file`, mypy compares both with
it, and the tables of docs/files.md are made from it (`rolloutbench schema --write`). preflight.json is in findings.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from common.errors import UserError
from common.files import read_json_object

Object = dict[str, Any]


class PlanFile(TypedDict):
    """`results/<experiment>/plan.json`, written by the rule `plan`: what is compared."""

    experiment: Annotated[str, "the experiment's name"]
    description: Annotated[str, "what it is for"]
    baseline: Annotated[str, "the arm that the others are compared with"]
    arms: Annotated[
        dict[str, Object],
        "each arm as in config.yaml; an imported one has `import`, one that repeats another has `same_as`",
    ]
    sweep: Annotated[dict[str, list[Any]], "the values of each factor, by dotted path"]
    seeds: Annotated[list[int], "the seeds of the trained runs"]
    warmup_steps: Annotated[int, "how many first steps of each run do not count"]
    report: Annotated[Object, "what the report was asked for (docs/configuration.md)"]
    fingerprint: Annotated[str, "sha256 over all runs, and what the report is asked for; 64 hex digits"]
    runs: Annotated[list[str], "the ids of all runs"]
    imports: Annotated[list[str], "those of the runs that are imported, not trained"]
    fingerprints: Annotated[dict[str, str], "each run's fingerprint; a run that has another one is not reported"]


class ImportFacts(TypedDict):
    """What the configuration says of an imported run; null where it says nothing."""

    sources: Annotated[list[str], "files, folders or wandb:entity/project/id of one run, joined by step"]
    format: Annotated[str | None, "the sources' format; null to tell it by their content"]
    version: Annotated[str | None, "the trainer's release"]
    mode: Annotated[str | None, "the trainer's loop, where its release has several"]
    gpu: Annotated[str | None, "the GPU's name"]
    nodes: Annotated[int | None, "nodes of the run"]
    gpus_per_node: Annotated[int | None, "GPUs of each"]
    tensor_parallel: Annotated[int | None, "GPUs that hold the engine's model together"]
    model: Annotated[str | None, "the model"]
    batch_size: Annotated[int | None, "completions of a step"]
    max_response_length: Annotated[int | None, "the most tokens of a completion"]


# `import` is a word of Python's, so that a class cannot have it as an attribute.
_Import = TypedDict("_Import", {"import": NotRequired[Annotated[ImportFacts, "of an imported run: see below"]]})


class SpecFile(_Import):
    """`runs/<run_id>/spec.json`, written by the launcher from the plan: what is to be run, fully resolved."""

    spec_version: Annotated[int, "1"]
    experiment: Annotated[str, "the experiment's name"]
    run_id: Annotated[str, "the run's id: arm, factors, seed"]
    arm: Annotated[str, "its arm"]
    trainer: Annotated[str, "the arm's trainer"]
    engine: Annotated[str, "the arm's engine"]
    stack: Annotated[str, "the environment's name; empty for an imported run"]
    seed: Annotated[int, "the seed; of an imported run what the configuration gives it"]
    factors: Annotated[Object, "the run's value of each factor, by dotted path"]
    workload: Annotated[Object, "as in config.yaml, with defaults; {} where an imported run's is not told"]
    options: Annotated[Object, "the arm's options"]
    env: Annotated[dict[str, str], "the arm's environment variables"]
    trainer_args: Annotated[Object, "the trainer's own settings that these words are translated to"]
    job_module: NotRequired[Annotated[str, "what trains in the stack (hashed: never renamed)"]]
    ray: NotRequired[Annotated[bool, "whether it spreads by Ray"]]
    spread: NotRequired[Annotated[str, "`torchrun` or `server` where it trains in several processes; else absent"]]
    server: NotRequired[Annotated[Object, "the server beside it: `module`, `gpus`, `patience_s` for its first answer"]]
    scorer: NotRequired[Annotated[Object, "the same of the process of reward models with devices of their own"]]
    least_cpus: NotRequired[Annotated[int, "CPUs of all nodes together without which it would wait for ever"]]
    lock_id: NotRequired[Annotated[str, "12 hex digits of the stack's lock's hash"]]
    inputs_id: NotRequired[Annotated[str, "names the folder of its data and model"]]
    fingerprint: Annotated[str, "sha256 of all the other keys, 64 hex digits"]


class InputsSha256(TypedDict):
    """The data and the models of a run; the reward models together, where there are some."""

    data_sha256: str
    model_sha256: str
    reward_models_sha256: NotRequired[str]


class SlurmPlace(TypedDict):
    """Where Slurm put a life of a job."""

    job_id: str
    restart: int
    nodes: str


class AttemptFile(TypedDict):
    """`attempts/<n>/attempt.json`, written by the job on the node: the order for one life of a run."""

    attempt: Annotated[int, "the life's number, from 1"]
    run_id: Annotated[str, "whose life"]
    fingerprint: Annotated[str, "of the spec that it is to run"]
    spec: Annotated[str, "absolute path of its spec.json"]
    inputs: Annotated[str, "absolute path of inputs.json"]
    inputs_sha256: Annotated[InputsSha256, "the data and the model that were ordered"]
    attempt_dir: Annotated[str, "absolute path of its folder"]
    checkpoint_dir: Annotated[str, "absolute path, shared by attempts of the same fingerprint and inputs"]
    cpus: Annotated[int, "CPUs of the node that it may use"]
    cwd: Annotated[str, "where it starts: the repository"]
    command: Annotated[list[str], "what the job on the node starts"]
    env: Annotated[dict[str, str], "the arm's variables"]
    job: Annotated[int, "the submission's number"]
    host: Annotated[str, "the node"]
    started: Annotated[float, "seconds since 1970"]
    slurm: Annotated[SlurmPlace | None, "job_id, restart and nodes; null on this machine"]
    output_bytes: Annotated[int, "how much the job's own output held when this life began"]


class DoneFile(TypedDict):
    """`attempts/<n>/done.json`, the last file of a job; `runs/<run_id>/done.json` is the finished attempt's."""

    run_id: Annotated[str, "whose run"]
    fingerprint: Annotated[str, "of the spec that was run"]
    attempt: Annotated[int, "the attempt that finished"]
    first_step: Annotated[int, "this attempt's first step; one past `last_step` if an earlier one had done them all"]
    last_step: Annotated[int, "the run's last step"]
    steps: Annotated[int, "how many steps this attempt did"]
    started: Annotated[float, "seconds since 1970"]
    finished: Annotated[float, "seconds since 1970"]
    inputs: Annotated[InputsSha256, "the data and the model that were trained on"]
    versions: Annotated[dict[str, str], "of Python and of the packages that matter, where they are installed"]
    hardware: Annotated[
        Object,
        "host, cpu, cpus, threads (torch's after the engine was built), affinity, memory_gib, gpus, driver, cuda",
    ]
    resolved: Annotated[
        Object,
        "trainer, engine, environment: the settings as they were finally held, and the variables that bear on speed; "
        "never a key, token or password",
    ]
    git: Annotated[Object | None, "commit and dirty, of the code that ran, as it was when the attempt began"]
    stack_origin: NotRequired[Annotated[Object, "env/origin.json with its state; absent in an image"]]


class ImportedSource(TypedDict):
    """One source of an imported run."""

    source: Annotated[str, "as the configuration names it"]
    format: Annotated[str, "its format"]
    sha256: Annotated[str | None, "of a file"]
    bytes: Annotated[int | None, "of a file"]
    steps: Annotated[int, "how many steps it holds"]
    selected: Annotated[dict[str, str] | None, "which rows count of a table of several runs, by column"]


class ImportedFile(TypedDict):
    """`runs/<run_id>/imported.json`, written by analysis.imports: what stands for done.json of an imported run."""

    run_id: Annotated[str, "whose run"]
    fingerprint: Annotated[str, "of its spec.json"]
    imported: Annotated[bool, "true"]
    first_step: Annotated[int, "the first step that was read"]
    last_step: Annotated[int, "the last one"]
    steps: Annotated[int, "how many there are"]
    versions: Annotated[dict[str, str], "the trainer's, and what the sources tell of others"]
    hardware: Annotated[Object, "as in done.json; {} where no source tells it"]
    resolved: Annotated[Object, "the run's whole configuration as a source holds it, or {}"]
    git: Annotated[Object | None, "of the code that ran, where a source tells it"]
    started: Annotated[float | None, "seconds since 1970"]
    finished: Annotated[float | None, "seconds since 1970"]
    sources: Annotated[list[ImportedSource], "what it was read from: see below"]


class MetricsLine(TypedDict):
    """A line of `attempts/<n>/metrics.jsonl`, written when a training step is finished and on the disk at once.

    Readers ignore a last line that was cut off. A number that is not finite, or that the trainer has none for, is null.
    """

    step: Annotated[int, "from 1"]
    time: Annotated[float, "seconds since 1970"]
    resumed: Annotated[bool, "whether it is an attempt's first step after a checkpoint"]
    phases: Annotated[
        Mapping[str, float | None], "seconds by path in the trainer's timer tree, parents included; {} for verl"
    ]
    scalars: Annotated[dict[str, Any], "numbers under the trainer's and wandb's names"]
    samples: Annotated[Mapping[str, list[int]], "`response_length`: each completion's tokens"]


class Sample(TypedDict):
    """One prompt's completion in samples.jsonl."""

    row: Annotated[int, "the prompt's row in the prepared test data, from 0; in the data where there is no test data"]
    prompt: Annotated[list[Object], "the conversation: role and content of each message, cut as `completion` is"]
    completion: Annotated[
        str, "the text without special tokens, without the middle where it has over 10,000 characters"
    ]
    characters: Annotated[int, "how many the whole text has"]
    tokens: Annotated[int, "how many tokens it has, without the end token"]
    cut_off: Annotated[bool, "whether it was cut off at `max_response_length`"]
    rewards: Annotated[Mapping[str, float | None], "each reward, before its weight; null where it has no value"]


class SamplesLine(TypedDict):
    """A line of `attempts/<n>/samples.jsonl`, written before, halfway through and after training."""

    step: Annotated[int, "how many steps the policy had trained: 0, about half of them, or all"]
    steps: Annotated[int, "how many the run has"]
    how: Annotated[str, "what generated them, and how it sampled"]
    seconds: Annotated[float, "what taking them took, beside a validation of the trainer's own; in no step's time"]
    problem: Annotated[str | None, "why there are no completions, or not whole ones; null where all is well"]
    samples: Annotated[list[Sample], "of the first `workload.samples` prompts, in their order"]


class StepRow(TypedDict):
    """A row of `runs/<run_id>/steps.parquet`, written by analysis.collect and analysis.imports."""

    run_id: Annotated[str, "whose step"]
    arm: Annotated[str, "the run's arm"]
    seed: Annotated[int, "the run's seed", "int64"]
    attempt: Annotated[int, "which life of the run; 1 of an imported one"]
    step: Annotated[int, "which training step, from 1"]
    kind: Annotated[str, "`phase`, `scalar` or `sample`"]
    name: Annotated[str, "the phase's path, or the metric's name"]
    parent: Annotated[str | None, "of a phase: the nearest ancestor that was timed; null for a root"]
    value: Annotated[float, "in full precision; NaN where the source has no finite number"]
    unit: Annotated[str, "`s` or `tokens` where that is known; else `1`"]
    exclusive_s: Annotated[float | None, "of a phase: its own seconds less its children's"]
    resumed: Annotated[bool, "whether it is the attempt's first step after a checkpoint"]
    overlap: Annotated[bool, "whether an earlier attempt trained this step, too"]
    rounding: Annotated[float | None, "half a unit of the value's last printed digit; null where it is there in full"]
    source_file: Annotated[str, "where the value was read, relative to the run's folder; else as the import names it"]
    source_line: Annotated[int, "the line there; of a wandb file the record's number"]


class RatioInFile(TypedDict):
    """A ratio in verdict.json: seconds of the baseline over seconds of the arm; above 1 the arm is faster."""

    unit: Annotated[str, "`at equal work`, `per response token` or `per step`"]
    estimates: Annotated[list[str], "the estimates that are claimed (docs/estimates.md)"]
    at: Annotated[list[str], "the factor combinations that it spans"]
    value: Annotated[list[float], "the lowest and the highest of these, as in tables/estimates"]
    interval: Annotated[list[float | None], "the lowest and the highest end of the 95% intervals over runs, or nulls"]
    interval_at: Annotated[list[str], "the factor combinations that have an interval"]


class CaveatInFile(TypedDict):
    """A caveat in verdict.json."""

    kind: Annotated[str, "by order of harm: `terms`, `gate`, `spread` (of runs), `estimates`, `data`"]
    text: Annotated[str, "one sentence"]
    section: Annotated[str, "the id of the section of report.html with the details"]


class ArmInVerdict(TypedDict):
    """An arm in verdict.json."""

    arm: Annotated[str, "the arm"]
    baseline: Annotated[str, "what it is compared with"]
    verdict: Annotated[str, "`+` faster, `-` slower, `~` not resolved (or not at all factors), `x` not comparable"]
    words: Annotated[str, "the verdict in words"]
    ratios: Annotated[list[RatioInFile], "what says most about speed first; [] where nothing is comparable"]
    run_pairs: Annotated[int, "pairs of runs, by seed, over all factor combinations"]
    paired_steps: Annotated[int, "pairs of steps that count"]
    basis: Annotated[str, "these in words"]
    caveats: Annotated[list[CaveatInFile], "the most harmful first"]
    settle: Annotated[list[str], "what would settle it"]


class VerdictFile(TypedDict):
    """`results/<experiment>/verdict.json`, written by analysis.report: what the comparison claims."""

    experiment: Annotated[str, "the experiment's name"]
    baseline: Annotated[str, "the arm that the others are compared with"]
    arms: Annotated[list[ArmInVerdict], "a verdict for each other arm that has steps in common with the baseline"]
    no_comparison: Annotated[str, "why there is no verdict; empty where there is one"]


FileT = TypeVar("FileT")


def read_file(kind: type[FileT], path: Path, made_by: str, needs: Iterable[str] = ()) -> FileT:
    """A JSON file of that kind; `UserError` where it is not there, no object, or lacks what the reader `needs`."""
    raw, hints = read_json_object(path, made_by), get_type_hints(kind)
    for key in needs:
        if key not in raw or not fits(raw[key], hints[key]):
            got = repr(raw[key])[:200] if key in raw else "nothing"
            raise UserError(f"{path}: {key} must be {describe_type(hints[key])} (got {got}); {made_by} makes it")
    return raw  # type: ignore[return-value]


def fits(value: Any, hint: Any) -> bool:
    """Whether a value of JSON is of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin in (list, tuple):
        return isinstance(value, list) and all(fits(one, inner[0]) for one in value)
    if origin in (dict, Mapping) or is_typeddict(hint) or hint is dict:
        return isinstance(value, dict) and all(fits(one, inner[1]) for one in value.values() if inner)
    if hint is Any or hint is bool or not isinstance(value, bool):
        return hint is Any or isinstance(value, (int, float) if hint is float else hint)
    return False


_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", NoneType: "null", Any: "anything"}


def describe_type(hint: Any) -> str:
    """A type of JSON as people read it: `list of text`, `whole number or null`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, inner))
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in inner)
    if origin in (list, tuple):
        return f"list of {describe_type(inner[0])}"
    if origin in (dict, Mapping) and inner[1] is not Any:
        return f"object of {describe_type(inner[1])}"
    return _WORDS.get(hint, "object")


def markdown_table(kind: type) -> str:
    """A file's keys as a table in Markdown: each with its type and meaning."""
    rows = ["| key | type | meaning |", "|---|---|---|"]
    plain, full = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    for key, hint in full.items():
        absent = get_origin(hint) is NotRequired
        meaning = get_args(get_args(hint)[0] if absent else hint)[1]
        rows.append(f"| `{key}` | {describe_type(plain[key])}{' or absent' if absent else ''} | {meaning} |")
    return f"{' '.join((kind.__doc__ or '').split())}\n\n" + "\n".join(rows) + "\n\n"
