"""Finds what makes an experiment impossible, unequal or odd, before a GPU is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import read_json, write_json
from common.findings import Finding, Preflight, downgrade_imported, merge_findings
from trainers.cases import Case, StackPins, points_of
from trainers.memory_estimate import MemoryEstimate, estimate_of
from workflow.config.plan import Plan
from workflow.preflight.cases import cases_of, load_stack_facts
from workflow.preflight.checks import LaunchContext, one_case
from workflow.preflight.checks import variables as environment
from workflow.preflight.checks.comparison import comparison_findings, terms_findings
from workflow.preflight.checks.reward_sources import own_reward_findings, reward_models, unsized
from workflow.preflight.import_settings import UnknownSettings, factor_findings, imported_cases, is_complete
from workflow.preflight.ledger import ledger_of


@dataclass(frozen=True)
class PreflightResult(Preflight):
    """All that is said of an experiment before it runs, and the cases that it is said of."""

    cases: tuple[Case, ...] = ()
    unknown: tuple[UnknownSettings, ...] = ()
    """Imported runs of whose settings nothing is known."""

    @property
    def impossible(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "impossible"]

    @property
    def refusal(self) -> str:
        """What cannot be done with the experiment as it is, where something is impossible."""
        imported = {case.arm for case in (*self.cases, *self.unknown) if case.imported}
        alone = all(imported.issuperset(finding.arms) for finding in self.impossible)
        return f"{self.experiment} cannot {'be compared' if alone else 'run'} as it is"


def preflight(
    plan: Plan,
    place: LaunchContext | None = None,
    composed: Mapping[str, Mapping[str, Any]] | None = None,
    stack_of: Callable[[str], StackPins] = load_stack_facts,
    imported: Mapping[str, Mapping[str, Any]] | None = None,
) -> PreflightResult:
    """Everything about a plan; `composed` holds the contents of settings.json by settings_id, where they are built,
    `imported` those of imported.json by run_id, where they are read."""
    place = place or LaunchContext()
    there, unknown = imported_cases(plan, imported or {}, stack_of)
    order = list(plan.config.arms)
    cases = sorted([*cases_of(plan, composed, stack_of), *there], key=lambda case: order.index(case.arm))
    found: list[Finding] = []
    for point in points_of([*cases, *unknown]):
        silent = [case for case in point if isinstance(case, UnknownSettings)]
        known = [case for case in point if case not in silent]
        found += comparison_findings(known, silent)
        found += terms_findings(known, silent)
        found += environment.environment_findings(known, place)
        found += (finding for case in known for finding in _findings(case, place))
    found += own_reward_findings(plan)
    found = downgrade_imported([*found, *one_case.experiment_findings(plan)], plan.config.imports)
    found += factor_findings(plan, imported or {})
    estimates = {case.arm: estimate_of(case) for case in reversed(cases) if not case.imported}
    return PreflightResult(
        experiment=plan.config.experiment,
        cases=tuple(cases),
        findings=tuple(merge_findings(found)),
        ledger=tuple(ledger_of(cases, unknown)),
        # Of the first combination of factors.
        memory={arm: one for arm in order if isinstance(one := estimates.get(arm), MemoryEstimate)},
        unverifiable=tuple(dict.fromkeys([*_unverifiable(cases, place), *(one.why for one in unknown)])),
        unknown=tuple(unknown),
    )


def _findings(case: Case, place: LaunchContext) -> list[Finding]:
    """What the checks of one case at a time find: its trainer's, and those of all.

    Of what has run elsewhere this shell and this site tell nothing; whether it fits the machine and how long it takes
    has shown itself.
    """
    own = case.trainer.checks
    here = [*one_case.CHECKS, reward_models, *environment.CHECKS, *one_case.CHECKS_OF_TIME]
    if case.imported:
        if not is_complete(case):
            return []
        here, place = [*one_case.CHECKS_OF_IMPORTED, environment.arch_list], LaunchContext()
    found = [finding for check in own for finding in check(case, place.variables)]
    return [*found, *(finding for check in here for finding in check(case, place))]


def _unverifiable(cases: Sequence[Case], place: LaunchContext) -> list[str]:
    told = []
    for case in cases:
        if not case.on_gpu:
            continue
        if not case.imported and isinstance(lacks := estimate_of(case), str):
            told.append(f"memory: {lacks}")
        told += unsized(case)
        if case.trainer.releases and case.version not in case.trainer.releases:
            told.append(
                f"what engines make of settings in {case.trainer.name} {case.version}: known of "
                f"{' and '.join(case.trainer.releases)} (a row per version in trainers/{case.trainer.name}/)"
            )
        if case.imported:
            continue
        if place.site.life_s and case.arm not in place.paces and case.workload.get("save_steps"):
            told.append(
                "checkpoints against walltime: no step was timed yet (--seconds-per-step X says what you expect)"
            )
        elif not place.site.life_s and case.arm not in place.paces:
            told.append("checkpoints against walltime: name the profile (--profile profiles/slurm)")
    return told


def require_possible(plan: Plan) -> PreflightResult:
    """The preflight of a plan; a `UserError` that lists all that is impossible in it, before anything is built."""
    found = preflight(plan)
    if found.impossible:
        told = "\n".join(
            f"  {number}. {', '.join(finding.arms)}: {finding.what}: {finding.why}.\n     change: {finding.change}\n"
            f"     source: {finding.source}"
            for number, finding in enumerate(found.impossible, start=1)
        )
        raise UserError(
            f"experiment {plan.config.experiment} cannot run as it is (nothing was built or submitted):\n{told}"
        )
    return found


def write_preflight(
    plan: Plan,
    settings_files: Sequence[Path],
    out: Path,
    place: LaunchContext | None = None,
    imported_files: Sequence[Path] = (),
) -> PreflightResult:
    """Write preflight.json from what the stacks have composed and the imported runs' sources have held.

    The files of settings are named `<settings_id>.json`, those of imported runs lie in the runs' folders.
    """
    composed = {path.stem: read_json(path) for path in settings_files}
    imported = {path.parent.name: read_json(path) for path in imported_files}
    found = preflight(plan, place, composed, imported=imported)
    write_json(out, found.as_json())
    return found
