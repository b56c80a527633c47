"""Which attempt speaks for each step of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from analysis.sources.metrics_jsonl import read_metrics_jsonl
from analysis.sources.wandb_offline import read_wandb_offline, wandb_files
from analysis.steps import ChosenStep
from common.contracts import AttemptFile, DoneFile, read_file
from common.errors import UserError
from common.verdicts import Verdict, count_of
from trainers.logs.record import TIMERS, SourceRead, StepRecord

# wandb keeps doubles, and so does JSON: anything beyond rounding in print is a real disagreement.
RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Attempt:
    """One life of the run: its number and its steps."""

    number: int
    records: dict[int, StepRecord]


def attempt_dirs(run_dir: Path) -> list[tuple[int, Path]]:
    """(number, folder) of every attempt, in order."""
    root = run_dir / "attempts"
    found = [(int(p.name), p) for p in root.iterdir() if p.name.isdigit()] if root.is_dir() else []
    return sorted(found)


def read_attempts(
    run_dir: Path, run_id: str, fingerprint: str, done: DoneFile, flat: bool = False
) -> tuple[list[Attempt], list[Verdict]]:
    """The attempts that led to a done.json: its spec, its data and model, and none after it; others are left out.

    `flat`: the trainer logs its timers under flat keys, which stay among the scalars here.
    """
    attempts: list[Attempt] = []
    verdicts: list[Verdict] = []
    for number, folder in attempt_dirs(run_dir):
        order = folder / "attempt.json"
        if not order.is_file():
            verdicts.append(
                Verdict("warning", "no-attempt-json", f"{run_id}: attempt {number} has no attempt.json; left out")
            )
            continue
        ordered = read_file(AttemptFile, order, "the job on the node")
        got = ordered.get("fingerprint")
        if got != fingerprint:
            text = f"{run_id}: attempt {number} was made for another spec (fingerprint {str(got)[:12]}); left out"
            verdicts.append(Verdict("note", "other-fingerprint", text))
            continue
        if ordered.get("inputs_sha256") != done.get("inputs"):
            text = f"{run_id}: attempt {number} was made with other data or another model; left out"
            verdicts.append(Verdict("note", "other-inputs", text))
            continue
        if number > done.get("attempt", number):
            text = f"{run_id}: attempt {number} came after attempt {done['attempt']} had finished; left out"
            verdicts.append(Verdict("note", "later-attempt", text))
            continue
        read = read_attempt(run_dir, folder, run_id, flat)
        verdicts += read.verdicts
        attempts.append(Attempt(number, read.records))
    return attempts, verdicts


def read_attempt(run_dir: Path, folder: Path, run_id: str, flat: bool = False) -> SourceRead:
    """An attempt's steps: from metrics.jsonl, and from wandb the steps that it lacks.

    Where both hold a step they must agree; `UserError` names run, step and key where they do not.
    """
    found = SourceRead()
    metrics = folder / "metrics.jsonl"
    if metrics.is_file():
        found = read_metrics_jsonl(metrics, f"{run_id}: {metrics.relative_to(run_dir).as_posix()}", flat)
    mirror: dict[int, StepRecord] = {}
    for path in wandb_files(folder):
        read = read_wandb_offline(path, f"{run_id}: {path.relative_to(run_dir).as_posix()}", flat)
        found.verdicts += read.verdicts
        mirror.update(read.records)
    for step, record in found.records.items():
        if step in mirror:
            check_agreement(record, mirror[step], run_id, run_dir)
    only_wandb = sorted(set(mirror) - set(found.records))
    if only_wandb:
        found.verdicts.append(
            Verdict(
                "note",
                "from-wandb",
                f"{run_id}: {count_of(len(only_wandb), 'step')} of attempt {folder.name} from wandb's file, "
                "not from metrics.jsonl (no response-length samples there)",
            )
        )
        found.records.update({step: mirror[step] for step in only_wandb})
    return found


def check_agreement(ours: StepRecord, mirror: StepRecord, run_id: str, run_dir: Path) -> None:
    """Compare the keys that both sources hold; `UserError` on the first that differs by more than 1e-9."""
    pairs = [(TIMERS + k, v, mirror.phases[k]) for k, v in ours.phases.items() if k in mirror.phases]
    pairs += [(k, v, mirror.scalars[k]) for k, v in ours.scalars.items() if k in mirror.scalars]
    for key, a, b in sorted(pairs):
        same = (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=RELATIVE_TOLERANCE, abs_tol=0.0)
        if not same:
            raise UserError(
                f"run {run_id}, step {ours.step}, key {key}: "
                f"{ours.file.relative_to(run_dir).as_posix()}:{ours.line} says {a!r}, "
                f"{mirror.file.relative_to(run_dir).as_posix()} (record {mirror.line}) says {b!r}. The job writes "
                "both at once, so one of them was changed or belongs to another run: find out which and move it away"
            )


def choose_steps(attempts: list[Attempt], run_id: str) -> tuple[list[ChosenStep], list[Verdict]]:
    """Each step from the last attempt that has it, in step order.

    An attempt that died after its last checkpoint leaves steps that the next one does again: those overlap.
    """
    holders: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        for step in attempt.records:
            holders.setdefault(step, []).append(attempt)
    chosen = []
    for step, owners in sorted(holders.items()):
        last = owners[-1]
        record = last.records[step]
        first_of_later_life = step == min(last.records) and step > 1
        resumed = first_of_later_life if record.resumed is None else record.resumed
        chosen.append(ChosenStep(last.number, record, resumed, overlap=len(owners) > 1))
    again = [c.record.step for c in chosen if c.overlap]
    verdicts = []
    if again:
        verdicts.append(
            Verdict(
                "note",
                "overlap",
                f"{run_id}: {count_of(len(again), 'step')} ({again[0]} to {again[-1]}) trained by more than one "
                "attempt; the last attempt's timings count",
            )
        )
    return chosen, verdicts
