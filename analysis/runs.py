"""Reads the finished runs of a plan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.imports.one_run import Seconds, same_seconds
from analysis.planned import PlanRead, factors_key
from analysis.steps import SCHEMA, TEXTS, read_steps
from common.contracts import DoneFile, ImportedFile, SpecFile, read_file
from common.dotted import as_mapping
from common.errors import UserError
from common.files import file_sha256, fingerprint_of, read_json_object
from common.verdicts import Verdict
from trainers.command import as_logged
from trainers.registry import brings_work, tree_named
from trainers.timers.own import tree_from_json
from trainers.timers.tree import TimerTree

SPEC_CHANGED = "spec.json was changed by hand: its fingerprint does not match its settings; start snakemake again"


LEFT_OUT = ("run-left-out", "same-rows")
"""The codes of verdicts on runs that do not count."""
_STEPS = ["step", "kind", "name", "parent", "value", "exclusive_s", "rounding", "attempt", "resumed", "overlap"]


# Texts come again and again.
_PACKED = pa.dictionary(pa.int32(), pa.string())
Lengths = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]
"""The step and the tokens of each response."""


@dataclass(frozen=True)
class Run:
    """One finished run: its identity and its files.

    `done` is done.json, or imported.json of an `imported` run.
    """

    run_id: str
    arm: str
    seed: int
    factors: dict[str, Any]
    spec: dict[str, Any]
    done: dict[str, Any]
    inputs: dict[str, Any] | None
    verify: dict[str, Any] | None
    attempts: tuple[int, ...]
    tree: TimerTree
    file: Path | None = None
    """Its steps.parquet. The tidy steps stay there: those of a thousand runs take half a gigabyte."""
    table: pa.Table | None = None
    """Its tidy steps, of a run without that file."""
    imported: bool = False
    inputs_folder: Path | None = None
    """Where its inputs were prepared: relative paths in inputs.json start there."""

    def attempt_files(self, name: str, attempt: int | str = "*") -> list[Path]:
        """The files of that name that its attempts left; an imported run has none."""
        return sorted(self.file.parent.glob(f"attempts/{attempt}/{name}")) if self.file is not None else []

    def rows(self, columns: Sequence[str]) -> pa.Table:
        """Columns of its tidy steps, read from the file each time; `UserError` if that is damaged."""
        if self.table is not None:
            return self.table.select(list(columns))
        assert self.file is not None
        return read_steps(self.file, columns)[0]

    @property
    def written(self) -> pa.Table:
        """Its tidy steps as steps.parquet has them."""
        table = self.rows(SCHEMA.names)
        return table.cast(SCHEMA.with_metadata(table.schema.metadata))

    @property
    def tidy(self) -> pa.Table:
        """Its tidy steps (docs/files.md: `_STEPS`)."""
        return self.rows(_STEPS).unify_dictionaries().combine_chunks()

    @property
    def lengths(self) -> Lengths:
        """The lengths of its responses."""
        table = self.rows(["kind", "name", "step", "value"])
        of_responses = pc.and_(pc.equal(table["kind"], "sample"), pc.equal(table["name"], "response_length"))
        found = table.filter(of_responses)
        return found["step"].to_numpy(), found["value"].to_numpy()

    @property
    def time_span(self) -> tuple[float, float] | None:
        """When it started and finished, in seconds since 1970; None where one is unknown."""
        start, end = self.done.get("started"), self.done.get("finished")
        if not isinstance(start, int | float) or not isinstance(end, int | float):
            return None
        return float(start), float(end)

    @property
    def hardware(self) -> Mapping[str, Any]:
        """The machine, as its job reported it; may be empty."""
        return as_mapping(self.done.get("hardware"))

    @property
    def without_gpu(self) -> bool:
        """Whether it was trained here, on the CPU."""
        return "import" not in self.spec and self.hardware.get("gpus") == []

    @property
    def factors_key(self) -> str:
        """The run's factors as tables have them, empty without a sweep."""
        return factors_key(self.factors)


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """A table's rows with the columns as attributes, untyped."""
    return iter(frame.itertuples())


def read_runs(plan: PlanRead, results: Path, stacks: Path | None) -> tuple[list[Run], list[Verdict]]:
    """The plan's readable runs, and a finding for each of the others."""
    runs: list[Run] = []
    verdicts: list[Verdict] = []
    first_with: dict[tuple[str, str, int], str] = {}
    for run_id in plan.runs:
        try:
            run, found = read_run(results, run_id, stacks)
            if run.done["fingerprint"] != plan.fingerprints[run_id]:
                raise UserError("it is of another configuration than the plan; start snakemake again")
            if run.arm not in plan.arms:
                raise UserError(f"its arm {run.arm!r} is not in the plan ({', '.join(plan.arms)})")
            same = first_with.setdefault((run.arm, run.factors_key, run.seed), run_id)
            if same != run_id:
                raise UserError(f"it has the arm, factors and seed of run {same}; only that one counts")
        except UserError as error:
            verdicts.append(Verdict("error", "run-left-out", f"run {run_id} is left out: {error}"))
            continue
        runs.append(run)
        verdicts += [replace(one, about=(run_id,)) for one in found]
    if any("read_as" in run.done for run in runs):
        text = (
            "runs of a script: its text, the varied words and its environment identify a run; the files that it names "
            "(configurations, code, data) are not hashed and must not change between runs"
        )
        verdicts.append(Verdict("note", "script-files", text))
    return distinct_runs(runs, verdicts), verdicts


def distinct_runs(runs: list[Run], verdicts: list[Verdict]) -> list[Run]:
    """The runs without those that read the same rows or repeat another one; `verdicts` gets a finding for each."""
    readers: dict[tuple[Path, str], tuple[str, list[str]]] = {}
    for run in runs:
        for entry in run.done.get("sources") or () if run.imported else ():
            source = str(entry.get("source"))
            key = Path(source).expanduser().resolve(), json.dumps(entry.get("selected"), sort_keys=True)
            readers.setdefault(key, (source, []))[1].append(run.run_id)
    for source, names in dict(readers.values()).items():
        if len(names) > 1:
            arms = dict.fromkeys(run.arm for run in runs if run.run_id in names)
            runs = [run for run in runs if run.run_id not in names]
            text = (
                f"runs {', '.join(names)} read the same rows of {source}, which are of one run: they are left out. In "
                "a table of several runs, give each a value of its own in a column run (the run's id), arm or engine"
            )
            verdicts.append(Verdict("error", "same-rows", text, tuple(arms)))
    # A copy would count as one run more and narrow every interval, or compare a run with itself.
    kept: list[Run] = []
    step_s = {run.run_id: _step_seconds(run) for run in runs if run.imported}
    for run in runs:
        others = (other for other in kept if run.imported and other.imported)
        same = next((other for other in others if _is_copy(run, other, step_s)), None)
        if same is None:
            kept.append(run)
            continue
        text = (
            f"run {run.run_id} ({_source_names(run)}) is left out: its steps took exactly as long as those of run "
            f"{same.run_id} ({_source_names(same)}), so it is a copy of the same run"
        )
        verdicts.append(Verdict("error", "same-rows", text, (run.arm, same.arm)))
    return kept


def _source_names(run: Run) -> str:
    return ", ".join(str(entry.get("source")) for entry in run.done.get("sources") or ())


def _is_copy(run: Run, other: Run, step_s: Mapping[str, Seconds]) -> bool:
    """Whether two runs have equal files; of one arm, whether their common steps took equally long."""
    ours, theirs = step_s[run.run_id], step_s[other.run_id]
    if run.arm == other.arm and same_seconds(ours, theirs):
        return True
    sources = [one.done.get("sources") or () for one in (run, other)]
    sizes = [[(one["bytes"], one["selected"]) for one in some] for some in sources]
    if ours != theirs or not sources[0] or sizes[0] != sizes[1] or not all(size for size, _ in sizes[0]):
        return False
    return list(map(_sha256, sources[0])) == list(map(_sha256, sources[1]))


def _sha256(source: Mapping[str, Any]) -> str:
    """The hash of a source's file, which only a run that was read in memory lacks."""
    return source.get("sha256") or file_sha256(Path(source["source"]).expanduser())


def _step_seconds(run: Run) -> Seconds:
    steps = run.rows(["kind", "name", "step", "value", "rounding"])
    of_steps = steps.filter(pc.and_(pc.equal(steps["kind"], "phase"), pc.equal(steps["name"], run.tree.root)))
    values = zip(of_steps["value"].to_pylist(), of_steps["rounding"].fill_null(0.0).to_pylist(), strict=True)
    return dict(zip(of_steps["step"].to_pylist(), values, strict=True))


def _finished(folder: Path) -> tuple[Any, Any, bool]:
    """spec.json and done.json of a run with steps, and whether it is imported (it has imported.json instead)."""
    spec: Any = read_file(SpecFile, folder / "spec.json", "the plan", ("seed",))
    from_log = brings_work(str(spec.get("trainer")))
    imported = "import" in spec or from_log
    done_name = "imported.json" if imported else "done.json"
    maker = "python -m analysis.imports" if imported else "the training job, as its last act"
    done: Any = read_file(ImportedFile if imported else DoneFile, folder / done_name, maker)
    if not (file := folder / "steps.parquet").is_file():
        module = "imports" if imported else "collect"
        raise UserError(f"{file} does not exist; python -m analysis.{module} makes it")
    if spec.get("fingerprint") != fingerprint_of(spec):
        raise UserError(SPEC_CHANGED)
    if done.get("fingerprint") != spec.get("fingerprint"):
        again = "start snakemake again" if imported else "train it again"
        raise UserError(f"{done_name} was made for another fingerprint than spec.json has; {again}")
    return as_logged(spec, done) if from_log else spec, done, imported


def read_run(results: Path, run_id: str, stacks: Path | None) -> tuple[Run, list[Verdict]]:
    """One run's files; `UserError` when spec.json, done.json or steps.parquet is missing or invalid.

    An imported run has no verified stack.
    """
    folder = results / "runs" / run_id
    spec, done, imported = _finished(folder)
    file = folder / "steps.parquet"
    table, metadata = read_steps(file, ["step"])
    if table.num_rows == 0:
        raise UserError("its steps.parquet has no step")
    # The file's metadata has the tree of a table with its own.
    tree = tree_from_json(metadata["tree"]) if "tree" in metadata else tree_named(str(metadata.get("timers")))
    if tree is None:
        raise UserError(f"its steps.parquet has the timers of {metadata.get('timers')!r}; collect the run again")
    verdicts = [Verdict(**v) for v in metadata.get("verdicts", [])]
    for doubt in as_mapping(done.get("read_as")).get("doubts", ()):
        verdicts.append(Verdict("warning", "word-without-effect", f"{run_id}: {doubt}"))
    inputs_folder = results / "inputs" / str(spec.get("inputs_id"))
    verify = None
    if stacks is not None and not imported:
        stack, lock_id = str(spec.get("stack")), str(spec.get("lock_id"))
        verify = _optional(stacks / stack / lock_id / "verify.json")
        verdicts += _verify_verdicts(verify, f"stack {stack} ({lock_id})")
    run = Run(
        run_id=run_id,
        arm=str(spec.get("arm")),
        seed=spec["seed"],
        factors=dict(spec.get("factors") or {}),
        spec=spec,
        done=done,
        inputs=_optional(inputs_folder / "inputs.json"),
        verify=verify,
        attempts=tuple(metadata.get("attempts", ())),
        tree=tree,
        file=file,
        imported=imported,
        inputs_folder=inputs_folder,
    )
    return run, verdicts


def run_in_memory(spec: dict[str, Any], done: ImportedFile, tree: TimerTree, tables: Iterable[pa.Table]) -> Run:
    """A run that was imported without files."""
    packed = [field.with_type(_PACKED) if field.name in TEXTS else field for field in SCHEMA]
    # Part by part: as texts a long run takes ten times as much.
    table = pa.concat_tables(part.cast(pa.schema(packed, part.schema.metadata)) for part in tables)
    return Run(
        run_id=str(spec["run_id"]),
        arm=str(spec["arm"]),
        seed=spec["seed"],
        factors=dict(spec["factors"]),
        spec=spec,
        done=dict(done),
        inputs=None,
        verify=None,
        attempts=(1,),
        tree=tree,
        table=table,
        imported=True,
    )


def _verify_verdicts(verify: Mapping[str, Any] | None, stack: str) -> list[Verdict]:
    if verify is None:
        return [Verdict("warning", "stack-unverified", f"{stack} has no verify.json: its versions were not checked")]
    return [
        Verdict(
            "warning",
            "stack-check-failed",
            f"{stack}: {c.get('name')} should be {c.get('expected')}, is {c.get('got')}",
        )
        for c in verify.get("checks", [])
        if not c.get("ok")
    ]


def _optional(path: Path) -> dict[str, Any] | None:
    return read_json_object(path, "the pipeline") if path.is_file() else None
