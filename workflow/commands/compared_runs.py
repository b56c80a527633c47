"""Makes the runs of compared logs, and their report's content, in memory."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.imports.import_run import read_sources, run_of
from analysis.imports.one_run import runs_among
from analysis.planned import PlanRead
from analysis.report.content import Content, content_of
from analysis.runs import Run, distinct_runs, run_in_memory
from common.contracts import SPEC_VERSION
from common.errors import UserError
from common.files import fingerprint_of
from common.verdicts import Verdict
from trainers.logs.record import Imported
from trainers.registry import trainer_named
from workflow.commands.compared_arms import ComparedArm
from workflow.preflight import imports_checked

# What only a configuration states of a run.
_NOT_GIVEN = (
    *("format", "gpu", "nodes", "gpus_per_node", "tensor_parallel", "model", "batch_size", "max_response_length"),
)


def divide(arms: Sequence[ComparedArm]) -> list[str]:
    """Finds the runs in the arms' logs; returns a sentence for each log that is left out.

    `UserError` for a folder whose logs are not one run.
    """
    sentences = []
    for arm in arms:
        # The results of a benchmark are no steps that go on.
        has_steps = trainer_named(arm.trainer).step_of == "step"
        if has_steps and len(arm.read) > 1 and not any(one.selected for one in arm.read.values()):
            arm.runs, left_out = runs_among(arm.read)
            sentences += [f"{arm.name}: {text}." for text in left_out]
        for folder, logs in arm.folders.items():
            _require_one_run(arm, folder, logs)
    return sentences


def _require_one_run(arm: ComparedArm, folder: str, logs: Sequence[str]) -> None:
    known = {log for log in logs if log in arm.read}
    if not any(known <= set(run) for run in arm.runs):
        found = ", ".join(Path(log).name for log in logs)
        raise UserError(
            f"{folder} holds {len(logs)} logs ({found}), which are not one run; "
            "give one, or several separated by commas (seeds of one arm)"
        )


def compared_content(arms: Sequence[ComparedArm], args: argparse.Namespace) -> Content:
    """The content of the report on compared logs."""
    specs: dict[str, dict[str, Any]] = {}
    parts: dict[str, list[Imported]] = {}
    for arm in arms:
        for seed, sources in enumerate(arm.runs):
            spec = _spec(arm, seed, sources, args)
            specs[spec["run_id"]] = spec
            known = {source: arm.read[source] for source in sources if not arm.read[source].selected}
            parts[spec["run_id"]] = read_sources(spec, known=known)
    # The tables and figures are of the baseline's kind, and a training has more of them.
    trained = [arm for arm in arms if trainer_named(arm.trainer).trains]
    plan = PlanRead(
        experiment=experiment_of(args),
        description="",
        baseline=(trained if len(trained) > 1 else arms)[0].name,
        arms={arm.name: {"trainer": arm.trainer, "engine": arm.engine, "import": {"runs": arm.runs}} for arm in arms},
        warmup_steps=1 if args.warmup is None else args.warmup,
        runs=tuple(specs),
        fingerprints={run_id: spec["fingerprint"] for run_id, spec in specs.items()},
        report={"spread": args.spread} if args.spread else {},
    )
    return imported_content(plan, specs, parts, keep_one_step=args.warmup is None)


def experiment_of(args: argparse.Namespace) -> str:
    """The name of a comparison."""
    return str((args.save or args.report).stem)


def _spec(arm: ComparedArm, seed: int, sources: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """The spec.json of a run, as the saved configuration would give it."""
    facts = {"sources": sources, "version": arm.release or None, "mode": args.mode or "", **dict.fromkeys(_NOT_GIVEN)}
    spec = {
        "spec_version": SPEC_VERSION,
        "experiment": experiment_of(args),
        "run_id": f"{arm.name}-s{seed}",
        **{"arm": arm.name, "trainer": arm.trainer, "engine": arm.engine, "stack": "", "seed": seed},
        **{"factors": {}, "workload": {}, "options": {}, "env": {}, "trainer_args": {}},
        "import": facts | {name: value for name in ("step_seconds", "unit") if (value := getattr(args, name))},
    }
    return spec | {"fingerprint": fingerprint_of(spec)}


def imported_content(
    plan: PlanRead,
    specs: Mapping[str, dict[str, Any]],
    parts: Mapping[str, Sequence[Imported]] | None = None,
    keep_one_step: bool = False,
) -> Content:
    """The content of a report on imported runs; `parts` are the sources of those that were read before.

    `keep_one_step`: without a warm-up where a run has a single step. A run that cannot be read is left out, if its arm
    has others.
    """
    runs: list[Run] = []
    verdicts: list[Verdict] = []
    errors: dict[str, UserError] = {}
    for run_id, spec in specs.items():
        try:
            found = run_of(spec, parts[run_id] if parts else read_sources(spec), Path())
            runs.append(run_in_memory(spec, found.imported, found.tree, found.tables))
            verdicts += [replace(one, about=(run_id,)) for one in found.verdicts]
        except UserError as error:
            errors[spec["arm"]] = error
            text = f"run {run_id} is left out: {error}"
            verdicts.append(Verdict("error", "run-left-out", text, (spec["arm"],)))
    if lost := [error for arm, error in errors.items() if all(run.arm != arm for run in runs)]:
        raise lost[0]
    if keep_one_step and any(
        trainer_named(run.tree.trainer).step_of == "step" and run.done["steps"] == 1 for run in runs
    ):
        # Leaving it out as a warm-up would leave nothing to compare.
        plan = replace(plan, warmup_steps=0)
    before = imports_checked(plan.experiment, specs, {run.run_id: run.done for run in runs})
    return content_of(plan, distinct_runs(runs, verdicts), verdicts, before)
