"""Makes the runs of compared logs, and their report's content, in memory."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.imports.import_run import read_sources, run_of
from analysis.imports.one_run import runs_among
from analysis.planned import PlanRead
from analysis.report.content import Content, content_of
from analysis.runs import Run, distinct_runs, run_in_memory
from common.contracts import ImportedFile
from common.errors import UserError
from common.verdicts import Verdict
from trainers.logs.record import Imported
from trainers.registry import trainer_named
from workflow.commands.compared_arms import ComparedArm
from workflow.config.imports import Import
from workflow.config.model import Arm, Config
from workflow.config.plan import Plan
from workflow.config.planned_run import planned_run
from workflow.preflight import preflight

# What only a configuration states of a run.
_NOT_GIVEN = (
    *("format", "gpu", "nodes", "gpus_per_node", "tensor_parallel", "model", "batch_size", "max_response_length"),
)


def divide(arms: Sequence[ComparedArm]) -> list[str]:
    """Finds the runs in the arms' logs; returns a sentence for each log that is left out."""
    sentences = []
    for arm in arms:
        if len(arm.sources) > 1 and not any(one.selected for one in arm.read.values()):
            arm.runs, left_out = runs_among(arm.read)
            sentences += [f"{arm.name}: {text}." for text in left_out]
    return sentences


def compared_content(arms: Sequence[ComparedArm], args: argparse.Namespace) -> Content:
    """The content of the report on compared logs."""
    plan, parts = _plan(arms, args)
    kinds = {name: (arm.trainer, trainer_named(arm.trainer).trains) for name, arm in plan.config.arms.items()}
    # The tables and figures are of the baseline's kind, and a training has more of them.
    trained = [name for name, (_, trains) in kinds.items() if trains]
    read = PlanRead(
        experiment=plan.config.experiment,
        description="",
        baseline=(trained if len(trained) > 1 else list(kinds))[0],
        arms={arm.name: {"trainer": arm.trainer, "engine": arm.engine, "import": {"runs": arm.runs}} for arm in arms},
        warmup_steps=1 if args.warmup is None else args.warmup,
        runs=tuple(plan.imports),
        fingerprints={run_id: run.fingerprint for run_id, run in plan.imports.items()},
        report={"spread": args.spread} if args.spread else {},
    )
    return imported_content(plan, read, parts, keep_one_step=args.warmup is None)


def _plan(arms: Sequence[ComparedArm], args: argparse.Namespace) -> tuple[Plan, dict[str, list[Imported]]]:
    """The plan of compared logs, and the content of each run's sources as far as they were read."""
    given = {"version": None, "mode": args.mode or "", **dict.fromkeys(_NOT_GIVEN)}
    given |= {"step_seconds": args.step_seconds} if args.step_seconds else {}
    # Checked already: only what a user writes is validated.
    config = Config.model_construct(experiment=experiment_of(args), arms={})
    plan, parts = Plan(config, {}, {}, {}), {}
    for arm in arms:
        imported = Import.model_construct(version=arm.release or None, mode=args.mode or "", runs=())
        config.arms[arm.name] = Arm.model_construct(trainer=arm.trainer, engine=arm.engine, import_=imported)
        for seed, sources in enumerate(arm.runs):
            facts = {**given, "sources": sources, "version": arm.release or None}
            fields = {
                **{"arm": arm.name, "trainer": arm.trainer, "engine": arm.engine, "stack": "", "seed": seed},
                **{"factors": {}, "workload": {}, "options": {}, "env": {}, "trainer_args": {}, "import": facts},
            }
            run = planned_run(config, fields, {})
            plan.imports[run.run_id] = run
            known = {source: arm.read[source] for source in sources if not arm.read[source].selected}
            parts[run.run_id] = read_sources(run.spec, known=known)
    return plan, parts


def experiment_of(args: argparse.Namespace) -> str:
    """The name of a comparison."""
    return str((args.save or args.report).stem)


def imported_content(
    plan: Plan, read: PlanRead, parts: Mapping[str, Sequence[Imported]] | None = None, keep_one_step: bool = False
) -> Content:
    """The content of a report on imported runs; `parts` are the sources of those that were read before.

    `keep_one_step`: without a warm-up where a run has a single step. A run that cannot be read is left out, if its arm
    has others.
    """
    runs: list[Run] = []
    verdicts: list[Verdict] = []
    errors: dict[str, UserError] = {}
    for run_id, run in plan.imports.items():
        try:
            found = run_of(run.spec, parts[run_id] if parts else read_sources(run.spec), Path())
            runs.append(run_in_memory(run.spec, found.imported, found.tree, found.tables))
            verdicts += found.verdicts
        except UserError as error:
            errors[run.spec["arm"]] = error
            verdicts.append(Verdict("error", "run-left-out", f"run {run_id} is left out: {error}"))
    if lost := [error for arm, error in errors.items() if all(run.arm != arm for run in runs)]:
        raise lost[0]
    imported: dict[str, ImportedFile] = {run.run_id: run.done for run in runs}  # type: ignore[misc]
    if keep_one_step and any(
        trainer_named(run.tree.trainer).step_of == "step" and run.done["steps"] == 1 for run in runs
    ):
        # Leaving it out as a warm-up would leave nothing to compare.
        read = replace(read, warmup_steps=0)
    return content_of(read, distinct_runs(runs, verdicts), verdicts, preflight(plan, imported=imported))
