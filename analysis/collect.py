"""Collects the steps of finished runs into each run's steps.parquet: `python -m analysis.collect RUN_DIR...`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.attempts import choose_steps, read_attempts
from analysis.steps import ChosenStep, steps_table, write_steps
from analysis.tokens import token_sums
from common.contracts import DoneFile, SpecFile, read_file
from common.errors import UserError
from common.files import fingerprint_of
from common.messages import join_first
from common.verdicts import Verdict, count_of
from trainers.logs.record import TIMERS
from trainers.registry import trainer_named
from trainers.timers.exclusive import Overrun, overruns
from trainers.timers.flat import UNDECLARED, nest_timers, timer_places
from trainers.timers.lookup import mode_of, tree_for
from trainers.timers.tree import TimerTree


def collect_run(run_dir: Path) -> pa.Table:
    """The tidy table of one finished run (schema: docs/files.md).

    Reads spec.json, done.json and every attempt of the run's fingerprint. `UserError` when the run is not
    finished, its steps are incomplete, its sources disagree, or its trainer's timers are not declared.
    """
    needs = ("run_id", "fingerprint", "trainer", "engine", "arm", "seed")
    spec = read_file(SpecFile, run_dir / "spec.json", "the plan", needs)
    done = read_file(DoneFile, run_dir / "done.json", "the training job, as its last act")
    run_id, fingerprint, trainer, engine = spec["run_id"], spec["fingerprint"], spec["trainer"], spec["engine"]
    if fingerprint != fingerprint_of(spec):
        raise UserError(
            f"run {run_id}: spec.json was changed by hand: its fingerprint is of other settings. Delete "
            f"{run_dir / 'done.json'} and start snakemake again: it writes both anew and retrains nothing finished"
        )
    if done.get("fingerprint") != fingerprint:
        raise UserError(
            f"run {run_id}: done.json was made for fingerprint {str(done.get('fingerprint'))[:12]}, but spec.json "
            f"has {fingerprint[:12]}: the plan changed after the run. Train this run again before collecting it"
        )
    version = str(done.get("versions", {}).get(trainer_named(trainer).distribution, "of unknown version"))
    tree = tree_for(trainer, version, engine, mode_of(trainer, version, spec, done))
    attempts, verdicts = read_attempts(run_dir, run_id, fingerprint, done, tree.flat)
    chosen, more = choose_steps(attempts, run_id)
    verdicts += more
    require_steps(chosen, done.get("last_step"), run_id)
    if tree.flat:
        verdicts += in_the_tree(chosen, tree, run_id)
        chosen = with_tokens(chosen, spec)
    verdicts += timer_verdicts(chosen, tree, run_id)
    metadata: dict[str, Any] = {
        "timers": tree.name,
        "attempts": list(attempts),
        "verdicts": [v.as_dict() for v in verdicts],
    }
    return steps_table(spec, run_dir, chosen, tree, metadata)


def require_steps(chosen: Sequence[ChosenStep], last_step: object, run_id: str) -> None:
    """`UserError` unless exactly the steps 1 to `last_step` are there."""
    if isinstance(last_step, bool) or not isinstance(last_step, int) or last_step < 1:
        raise UserError(f"run {run_id}: done.json's last_step must be a whole number from 1 (got {last_step!r})")
    have = {c.record.step for c in chosen}
    missing = [step for step in range(1, last_step + 1) if step not in have]
    if missing:
        raise UserError(
            f"run {run_id}: {len(missing)} of its {last_step} steps are in no attempt's metrics.jsonl or wandb file "
            f"(missing: {join_first(missing)}). A run with gaps is not compared: see attempts/*/log, then retrain it"
        )
    beyond = sorted(step for step in have if step > last_step)
    if beyond:
        raise UserError(
            f"run {run_id}: the attempts hold step {beyond[-1]}, but done.json says that the last is {last_step}: "
            "files of two runs are mixed in this folder. Move the foreign attempt away, then collect again"
        )


def in_the_tree(chosen: list[ChosenStep], tree: TimerTree, run_id: str) -> list[Verdict]:
    """Gives steps whose timers came under flat keys their phases in the tree, in their own places of the list."""
    places, verdicts = timer_places(
        [c.record.scalars for c in chosen], tree, run_id, [c.record.rounding for c in chosen]
    )
    undeclared: dict[str, tuple[int, float]] = {}
    for at, c in enumerate(chosen):
        found = nest_timers(c.record.scalars, tree, places)
        for name in found.undeclared:
            undeclared.setdefault(name, (c.record.step, found.scalars[UNDECLARED + name]))
        rounding: dict[str, float] = {}
        for key, cut in c.record.rounding.items():
            rounding[found.names[key]] = rounding.get(found.names[key], 0.0) + cut
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
            f"{run_id}: timer {name} (step {step}: {value:g}) is not in the declared timers of {tree.name}: in no sum, "
            f"kept as {UNDECLARED}{name}. Where it nests is not guessed: declare it in trainers/<trainer>/timers.py"
        )
        verdicts.append(Verdict("warning", "undeclared-phase", text))
    if tree.overlap:
        text = f"{run_id}: {tree.overlap}: its phases cannot be summed, so only the whole step is timed"
        verdicts.append(Verdict("warning", "overlapping-phases", text))
    if tree.unclocked:
        text = f"{run_id}: {tree.unclocked}: beside another trainer its steps look shorter than they were"
        verdicts.append(Verdict("warning", "step-no-clock", text))
    return verdicts


def with_tokens(chosen: Sequence[ChosenStep], spec: SpecFile) -> list[ChosenStep]:
    """Steps with their sums of tokens besides, where the means give them exactly and the trainer told no sums."""
    workload = spec.get("workload")
    completions = workload.get("batch_size") if isinstance(workload, dict) else None
    if not isinstance(completions, int) or completions < 1:
        return list(chosen)
    found = []
    for c in chosen:
        scalars = c.record.scalars
        if "response_tokens" not in scalars:
            scalars = {**scalars, **token_sums(scalars, completions)}
        found.append(replace(c, record=replace(c.record, scalars=scalars)))
    return found


def timer_verdicts(chosen: Sequence[ChosenStep], tree: TimerTree, run_id: str) -> Iterator[Verdict]:
    """Undeclared phases, steps without their root timer, and children that exceed their parent."""
    paths = {path for c in chosen for path in c.record.phases}
    for path in tree.in_order(p for p in paths if tree.declared(p) is None):
        text = (
            f"{run_id}: phase {path} is not in the declared timers of {tree.name}; it is kept and shown as undeclared. "
            "Declare it in trainers/<trainer>/timers.py"
        )
        yield Verdict("warning", "undeclared-phase", text)
    for path in sorted(p for p in paths if p.split("/")[0] != tree.root and not (tree.flat and tree.declared(p))):
        yield Verdict("warning", "outside-step", f"{run_id}: phase {path} lies outside `{tree.root}`: in no step's sum")
    over_of: dict[str, list[tuple[int, Overrun]]] = {}
    for c in chosen:
        rounding = {path: c.record.rounding.get(TIMERS + path, 0.0) for path in c.record.phases}
        for over in overruns(c.record.phases, rounding):
            over_of.setdefault(over.path, []).append((c.record.step, over))
    yield from (_overrun_verdict(run_id, some) for some in over_of.values())


def _overrun_verdict(run_id: str, some: Sequence[tuple[int, Overrun]]) -> Verdict:
    """All steps of a run in which one phase's children exceed it, the first in numbers."""
    (step, over), *others = some
    printed = f", and rounding explains only {over.rounding_s:.3g} s" if over.rounding_s else ""
    shown = join_first([other for other, _ in others])
    left = f". So it is in {count_of(len(others), 'more step')} ({shown}); they are" if others else "; the step is"
    text = (
        f"{run_id}, step {step}: the children of {over.path} sum to {over.children_s:.6f} s, but it took "
        f"{over.parent_s:.6f} s itself{printed}{left} left out of every number"
    )
    return Verdict("error", "children-exceed-parent", text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.collect", description="Collect the steps of runs.")
    parser.add_argument("run_dir", type=Path, nargs="+", metavar="RUN_DIR", help="results/<experiment>/runs/<run_id>")
    parser.add_argument("--out", type=Path, help="the steps.parquet to write (RUN_DIR/steps.parquet); for one run only")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="runs to collect at the same time (all cores)")
    args = parser.parse_args(argv)
    if args.out is not None and len(args.run_dir) > 1:
        parser.error("--out is for one run; without it each run's table goes to its own folder")
    order = [(run_dir, args.out or run_dir / "steps.parquet") for run_dir in args.run_dir]
    well = True
    for done, told in map(_write, order) if len(order) == 1 else _side_by_side(order, max(1, args.jobs)):
        print(told, file=sys.stdout if done else sys.stderr, flush=True)
        well &= done
    return 0 if well else 1


def _write(order: tuple[Path, Path]) -> tuple[bool, str]:
    """Collect one run into a file: whether that went well, and what to tell the person."""
    run_dir, out = order
    try:
        return True, f"{out}: {write_steps(collect_run(run_dir), out)} rows"
    except UserError as error:
        return False, f"error: {error}"


def _side_by_side(order: Sequence[tuple[Path, Path]], jobs: int) -> Iterator[tuple[bool, str]]:
    """What to tell of each run, in their order; imports are paid for once, and a run that fails stops no other."""
    # Not forked: pyarrow has threads.
    with ProcessPoolExecutor(min(jobs, len(order)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_write, order, chunksize=1 if len(order) < 100 else 8)


if __name__ == "__main__":
    sys.exit(main())
