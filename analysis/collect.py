"""Collects the steps of a finished run, from the attempts that have them: `python -m analysis.collect RUN_DIR`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from analysis.steps import ChosenStep, step_tables, write_steps
from analysis.tokens import add_known_tokens
from common.contracts import AttemptFile, DoneFile, SpecFile, read_file
from common.dotted import as_mapping
from common.errors import UserError
from common.files import fingerprint_of
from common.messages import join_first
from common.shown import shown_output
from common.verdicts import Level, Verdict, count_of
from trainers.logs.hf_work import shortened_responses
from trainers.logs.log_files import json_lines
from trainers.logs.record import TIMERS, SourceRead, StepRecord, as_number
from trainers.registry import driven_releases, mode_of, nearest_tree, trainer_named
from trainers.timers.exclusive import Overrun, overruns
from trainers.timers.flat import UNDECLARED, nest_timers, timer_places
from trainers.timers.tree import TimerTree


def read_metrics_jsonl(path: Path, shown_as: str, flat: bool = False) -> SourceRead:
    """The steps of one metrics.jsonl (format: docs/files.md), by step.

    A truncated last line is ignored: a kill cut it off. A corrupt line elsewhere, a value that is not a number, or a
    step that comes twice (the later line counts) is a finding with its line number. `shown_as` names the file there.
    `flat`: the trainer's timers are among the scalars, and a line without any of them (a validation before training, or
    after a resume) is not a training step.
    """
    found = SourceRead()

    def record_of(row: Any, number: int) -> StepRecord | None:
        return None if flat and _is_untimed(row) else _record(row, path, number)

    for record in json_lines(path, shown_as, record_of, found.verdicts):
        earlier = found.records.get(record.step)
        if earlier is not None:
            lines = f"on lines {earlier.line} and {record.line}; line {record.line} counts"
            text = f"{shown_as} has step {record.step} {lines}"
            found.verdicts.append(Verdict("warning", "duplicate-step", text))
        found.records[record.step] = record
    return found


def _is_untimed(raw: Any) -> bool:
    """Whether a row has numbers but no seconds."""
    scalars = raw.get("scalars") if isinstance(raw, dict) and not raw.get("phases") else None
    return isinstance(scalars, dict) and not any(name.startswith(TIMERS) for name in scalars)


def _record(raw: Any, path: Path, line: int) -> StepRecord:
    if not isinstance(raw, dict):
        raise TypeError(f"expected an object, got {type(raw).__name__}")
    step = raw.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise ValueError(f"step must be a whole number from 1 (got {step!r})")
    samples = raw.get("samples", {})
    if not isinstance(samples, dict) or not all(isinstance(v, list) for v in samples.values()):
        raise ValueError("samples must be lists by name")
    return StepRecord(
        step=step,
        phases=_numbers(raw.get("phases", {}), "phases"),
        scalars=_numbers(raw.get("scalars", {}), "scalars"),
        samples={name: list(_numbers(dict(enumerate(v)), name).values()) for name, v in samples.items()},
        resumed=bool(raw["resumed"]) if "resumed" in raw else None,
        file=path,
        line=line,
    )


def _numbers(raw: Any, what: str) -> dict[str, float]:
    if not isinstance(raw, dict):
        raise ValueError(f"{what} must be numbers by name (got {type(raw).__name__})")
    numbers = {}
    for name, value in raw.items():
        # Strict JSON writes not-a-number as null.
        number = math.nan if value is None else as_number(value)
        if number is None:
            raise ValueError(f"{what}[{name!r}] must be a number (got {value!r})")
        numbers[name] = number
    return numbers


Attempts = dict[int, dict[int, StepRecord]]
"""The steps of each attempt of the run, by its number."""


def read_attempts(
    run_dir: Path, run_id: str, fingerprint: str, done: DoneFile, flat: bool = False
) -> tuple[Attempts, list[Verdict]]:
    """The attempts that led to a done.json: of its spec, its data and its model, and none after it.

    `flat`: the trainer logs its timers under flat keys, which stay among the scalars here.
    """
    attempts: Attempts = {}
    verdicts: list[Verdict] = []
    root = run_dir / "attempts"
    folders = {int(p.name): p for p in root.iterdir() if p.name.isdigit()} if root.is_dir() else {}
    for number, folder in sorted(folders.items()):
        if reason := _left_out(folder, number, fingerprint, done):
            level, code, why = reason
            verdicts.append(Verdict(level, code, f"{run_id}: attempt {number} {why}; left out"))
            continue
        metrics, read = folder / "metrics.jsonl", SourceRead()
        if metrics.is_file():
            read = read_metrics_jsonl(metrics, f"{run_id}: {metrics.relative_to(run_dir).as_posix()}", flat)
        verdicts += read.verdicts
        attempts[number] = read.records
    return attempts, verdicts


def _left_out(folder: Path, number: int, fingerprint: str, done: DoneFile) -> tuple[Level, str, str] | None:
    """Why an attempt is not of the run that done.json finished: a finding's level, code and text."""
    if not (folder / "attempt.json").is_file():
        return "warning", "no-attempt-json", "has no attempt.json"
    attempt = read_file(AttemptFile, folder / "attempt.json", "the job on the node")
    if (got := attempt.get("fingerprint")) != fingerprint:
        return "note", "other-fingerprint", f"was made for another spec (fingerprint {str(got)[:12]})"
    if attempt.get("inputs_sha256") != done.get("inputs"):
        return "note", "other-inputs", "was made with other data or another model"
    if number > done.get("attempt", number):
        return "note", "later-attempt", f"came after attempt {done['attempt']} had finished"
    return None


def choose_steps(attempts: Attempts, run_id: str) -> tuple[list[ChosenStep], list[Verdict]]:
    """Each step from the last attempt that has it, in step order.

    An attempt that died after its last checkpoint leaves steps that the next one trains again: those overlap.
    """
    attempts_of: dict[int, list[int]] = {}
    for number, records in attempts.items():
        for step in records:
            attempts_of.setdefault(step, []).append(number)
    first = {number: min(records, default=0) for number, records in attempts.items()}
    chosen = []
    for step, numbers in sorted(attempts_of.items()):
        last = numbers[-1]
        record = attempts[last][step]
        resumed = step == first[last] and step > 1 if record.resumed is None else record.resumed
        chosen.append(ChosenStep(last, record, resumed, overlap=len(numbers) > 1))
    again = [c.record.step for c in chosen if c.overlap]
    return chosen, [overlap_verdict(run_id, again)] if again else []


def overlap_verdict(shown_as: str, again: Sequence[int]) -> Verdict:
    """The finding that several attempts trained the same steps."""
    text = (
        f"{shown_as}: more than one attempt trained {count_of(len(again), 'step')} ({again[0]} to {again[-1]}); the "
        "last attempt's timings count"
    )
    return Verdict("note", "overlap", text)


_POLLING_FROM = 0.01
"""From this share of a phase on its polling is a caveat."""


def collect_run(run_dir: Path) -> pa.Table:
    """The tidy table of one finished run (schema: docs/files.md), from all attempts of its fingerprint.

    Timers of an undeclared release are read as those of the nearest declared one, with a verdict. `UserError` when the
    run is not finished, its steps are incomplete, or its sources disagree.
    """
    needs = ("run_id", "fingerprint", "trainer", "engine", "arm", "seed")
    spec = read_file(SpecFile, run_dir / "spec.json", "the plan", needs)
    done = read_file(DoneFile, run_dir / "done.json", "the training job, as its last act")
    run_id, fingerprint, trainer, engine = spec["run_id"], spec["fingerprint"], spec["trainer"], spec["engine"]
    if fingerprint != fingerprint_of(spec):
        raise UserError(
            f"run {run_id}: spec.json was changed by hand: its fingerprint does not match its settings. Delete "
            f"{run_dir / 'done.json'} and start snakemake again: it rewrites both and retrains nothing finished"
        )
    if done.get("fingerprint") != fingerprint:
        raise UserError(
            f"run {run_id}: done.json was made for fingerprint {str(done.get('fingerprint'))[:12]}, but spec.json "
            f"has {fingerprint[:12]}: the plan changed after the run. Train this run again before collecting it"
        )
    version = str(done.get("versions", {}).get(trainer_named(trainer).distribution, "of unknown version"))
    tree = nearest_tree(trainer, version, engine, mode_of(trainer, version, spec, done))
    attempts, verdicts = read_attempts(run_dir, run_id, fingerprint, done, tree.flat)
    chosen, more = choose_steps(attempts, run_id)
    verdicts += more
    if not tree.matches(version):
        verdicts.append(Verdict("warning", "release-undeclared", _undeclared(run_id, trainer, version, tree)))
    _require_all_steps(chosen, done.get("last_step"), run_id)
    if tree.flat:
        verdicts += in_the_tree(chosen, tree, run_id)
        verdicts += add_known_tokens(chosen, as_mapping(spec.get("workload")).get("batch_size"), run_id)
    verdicts += [*timer_verdicts(chosen, tree, run_id), *shortened_responses([c.record for c in chosen], run_id)]
    if done.get("measurement", 1) == 1:
        # Our driver's later runs are polled more often.
        verdicts += polling_verdicts(chosen, tree, run_id)
    metadata = {"timers": tree.name, "attempts": list(attempts), "verdicts": [v.as_dict() for v in verdicts]}
    return pa.concat_tables(step_tables(spec, run_dir, chosen, tree, metadata)).combine_chunks()


def _undeclared(run_id: str, trainer: str, version: str, tree: TimerTree) -> str:
    known = ", ".join(driven_releases(trainer))
    return (
        f"{run_id}: the timers of {trainer} {version} are not declared (declared: {known}); they are read as those of "
        f"{tree.name}. Timers that it does not have stand beside the sums"
    )


def _require_all_steps(chosen: Sequence[ChosenStep], last_step: object, run_id: str) -> None:
    """`UserError` unless `chosen` has exactly the steps 1 to `last_step`."""
    if isinstance(last_step, bool) or not isinstance(last_step, int) or last_step < 1:
        raise UserError(f"run {run_id}: done.json's last_step must be a whole number from 1 (got {last_step!r})")
    have = {c.record.step for c in chosen}
    missing = [step for step in range(1, last_step + 1) if step not in have]
    if missing:
        raise UserError(
            f"run {run_id}: {len(missing)} of its {last_step} steps are in no attempt's metrics.jsonl "
            f"(missing: {join_first(missing)}). A run with missing steps is not compared: read attempts/*/log, then "
            "train it again"
        )
    if max(have) > last_step:
        raise UserError(
            f"run {run_id}: the attempts have step {max(have)}, but the last step in done.json is {last_step}: files "
            "of two runs are mixed in this folder. Move the foreign attempt away, then collect again"
        )


def in_the_tree(chosen: list[ChosenStep], tree: TimerTree, run_id: str) -> list[Verdict]:
    """Turns the flat timers of the list's steps into phases of the tree, in place; returns the findings."""
    places, verdicts = timer_places(
        [c.record.scalars for c in chosen], tree, run_id, [c.record.rounding for c in chosen]
    )
    undeclared: dict[str, tuple[int, float]] = {}
    for at, c in enumerate(chosen):
        found = nest_timers(c.record.scalars, tree, places)
        for name in found.undeclared:
            undeclared.setdefault(name, (c.record.step, found.scalars[UNDECLARED + name]))
        rounding: dict[str, float] = {}
        for key, off in c.record.rounding.items():
            rounding[found.names[key]] = rounding.get(found.names[key], 0.0) + off
        record = replace(
            c.record,
            phases={**c.record.phases, **found.phases},
            scalars=found.scalars,
            rounding=rounding,
            origins={found.names[key]: origin for key, origin in c.record.origins.items()},
        )
        chosen[at] = replace(c, record=record)
    for name, (step, value) in undeclared.items():
        text = (
            f"{run_id}: timer {name} (step {step}: {value:g}) is not declared for {tree.name}: it is in no sum and is "
            f"kept as {UNDECLARED}{name}. Declare where it nests in trainers/<trainer>/trainer.toml"
        )
        verdicts.append(Verdict("warning", "undeclared-phase", text))
    if tree.overlap:
        text = f"{run_id}: {tree.overlap}: its phases cannot be summed, so only the whole step is timed"
        verdicts.append(Verdict("warning", "overlapping-phases", text))
    if tree.unclocked:
        text = f"{run_id}: {tree.unclocked}: compared with another trainer its steps look shorter than they were"
        verdicts.append(Verdict("warning", "step-no-clock", text))
    return verdicts


def timer_verdicts(chosen: Sequence[ChosenStep], tree: TimerTree, run_id: str) -> Iterator[Verdict]:
    """Reports undeclared phases, phases outside the step, and children that exceed their parent."""
    paths = {path for c in chosen for path in c.record.phases}
    for path in tree.in_order(p for p in paths if tree.declared(p) is None):
        text = (
            f"{run_id}: phase {path} is not declared for {tree.name}; it is kept and shown as undeclared. Declare it "
            "in trainers/<trainer>/trainer.toml"
        )
        yield Verdict("warning", "undeclared-phase", text)
    for path in sorted(p for p in paths if p.split("/")[0] != tree.root and not (tree.flat and tree.declared(p))):
        yield Verdict("warning", "outside-step", f"{run_id}: phase {path} is outside `{tree.root}`: in no step's sum")
    overruns_of: dict[str, list[tuple[int, Overrun]]] = {}
    for c in chosen:
        rounding = {path: c.record.rounding.get(TIMERS + path, 0.0) for path in c.record.phases}
        for over in overruns(c.record.phases, rounding):
            overruns_of.setdefault(over.path, []).append((c.record.step, over))
    for (step, over), *others in overruns_of.values():
        rounding_text = f", and rounding explains only {over.rounding_s:.3g} s" if over.rounding_s else ""
        shown = join_first([other for other, _ in others])
        left_out = (
            f". The same in {count_of(len(others), 'more step')} ({shown}); they are" if others else "; the step is"
        )
        text = (
            f"{run_id}, step {step}: the children of {over.path} sum to {over.children_s:.6f} s, but it took only "
            f"{over.parent_s:.6f} s{rounding_text}{left_out} left out of every number"
        )
        yield Verdict("error", "children-exceed-parent", text)


def polling_verdicts(chosen: list[ChosenStep], tree: TimerTree, run_id: str) -> Iterator[Verdict]:
    """Says how long a polled wait may be too long, and adds it to the rounding of the list's steps, in place."""
    for phase in (phase for phase in tree.phases if phase.polled_s):
        seconds = [c.record.phases[phase.path] for c in chosen if phase.path in c.record.phases]
        if not seconds:
            continue
        for at, c in enumerate(chosen):
            rounding = dict(c.record.rounding)
            for path in (tree.root, phase.path):
                rounding[TIMERS + path] = rounding.get(TIMERS + path, 0.0) + phase.polled_s / 2
            chosen[at] = replace(c, record=replace(c.record, rounding=rounding))
        share = phase.polled_s / max(median(seconds), phase.polled_s)
        if share >= _POLLING_FROM:
            text = (
                f"{run_id}: {phase.keys[0]} is up to {phase.polled_s:g} s too long in each step ({share:.0%} of its "
                f"median {median(seconds):.3g} s), as {tree.trainer} looks every {phase.polled_s:g} s whether all "
                "responses are there: engines look more alike than they are (a true 1.50x as 1.40x)"
            )
            yield Verdict("warning", "wait-polled", text)


@shown_output()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.collect", description="Collect the steps of a run.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="results/<experiment>/runs/<run_id>")
    parser.add_argument("--out", type=Path, help="the steps.parquet to write (RUN_DIR/steps.parquet)")
    args = parser.parse_args(argv)
    out = args.out or args.run_dir / "steps.parquet"
    try:
        print(f"{out}: {write_steps(collect_run(args.run_dir), out)} rows")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
