"""Finds what makes an experiment impossible, unequal or odd, before a GPU is used."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.setting_terms import table
from analysis.terms import Term, mixed_findings
from common.errors import UserError
from common.files import read_json, write_json
from common.findings import NONE, Finding, LedgerRow, Preflight, downgrade_imported, merge_findings
from trainers.cases import Case, StackPins, points_of
from trainers.command import as_logged
from workflow.preflight import one_case
from workflow.preflight import variables as environment
from workflow.preflight.cases import LaunchContext, cases_of, known_files, load_stack_pins
from workflow.preflight.comparison import comparison_findings
from workflow.preflight.import_settings import factor_findings, imported_cases, is_complete
from workflow.preflight.one_case import experiment_findings
from workflow.preflight.variables import variables_of

if TYPE_CHECKING:
    from workflow.config.plan import Plan


@dataclass(frozen=True)
class PreflightResult(Preflight):
    """The preflight of an experiment, with the cases that it checked."""

    every: tuple[Case, ...] = ()

    @property
    def cases(self) -> list[Case]:
        return [case for case in self.every if not case.unknown]

    @property
    def unknown(self) -> list[Case]:
        """Those whose settings are unknown: imported runs."""
        return [case for case in self.every if case.unknown]

    @property
    def impossible(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "impossible"]

    @property
    def refusal(self) -> str:
        """The sentence that refuses an experiment with impossible findings."""
        imported = {case.arm for case in self.every if case.imported}
        only_imported = all(imported.issuperset(finding.arms) for finding in self.impossible)
        return f"{self.experiment} cannot {'be compared' if only_imported else 'run'} as it is"

    def with_site(self, findings: Sequence[Finding], unchecked: Sequence[str]) -> PreflightResult:
        """With what a site's checks found."""
        merged = tuple(merge_findings([*findings, *self.findings]))
        return replace(self, findings=merged, unverifiable=(*unchecked, *self.unverifiable))


def preflight(
    plan: Plan,
    launch: LaunchContext | None = None,
    composed: Mapping[str, Mapping[str, Any]] | None = None,
    stack_of: Callable[[str], StackPins] = load_stack_pins,
    imported: Mapping[str, Mapping[str, Any]] | None = None,
) -> PreflightResult:
    """Check a plan.

    `composed` maps settings_id to the content of settings.json, `imported` maps run_id to that of imported.json; both
    hold only the files that exist.
    """
    read, config = imported or {}, plan.config
    specs = [run.spec for run in plan.imports.values()]
    # A script's run is an import of its log.
    logged = [as_logged(plan.runs[run_id].spec, read[run_id]) for run_id in plan.own_runs if read.get(run_id)]
    launch = launch or LaunchContext()
    cases = [*cases_of(plan, composed, stack_of), *imported_cases([*specs, *logged], read, stack_of)]
    cases = [environment.with_setup(case, launch) for case in cases]
    cases.sort(key=lambda case: list(config.arms).index(case.arm))
    from workflow.preflight.reward_sources import own_reward_findings  # loads the readers of rewards

    more = [*own_reward_findings(plan)]
    seeds = _seeds(run.spec for run in plan.all_runs.values())
    seeds = {arm: seeds[arm] for arm in config.arms if arm in seeds}
    more += experiment_findings(seeds, config.imports, config.warmup_steps)
    return _checked(config.experiment, cases, launch, more, factor_findings(specs, read), config.imports)


def imports_checked(
    experiment: str, specs: Mapping[str, Mapping[str, Any]], imported: Mapping[str, Mapping[str, Any]]
) -> PreflightResult:
    """Check imported runs without a plan: spec.json and imported.json of each, by run_id."""
    cases = imported_cases(specs.values(), imported, load_stack_pins)
    arms = _seeds(specs.values())
    more = list(experiment_findings(arms, arms, 1))
    return _checked(experiment, cases, LaunchContext(), more, factor_findings(specs.values(), imported), arms)


def _seeds(specs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many seeds each arm has."""
    found: dict[str, set[int]] = {}
    for spec in specs:
        found.setdefault(spec["arm"], set()).add(spec["seed"])
    return {arm: len(seeds) for arm, seeds in found.items()}


def _checked(
    experiment: str,
    cases: Sequence[Case],
    launch: LaunchContext,
    more: Iterable[Finding],
    mislabelled: Iterable[Finding],
    imported: Container[str],
) -> PreflightResult:
    """The findings and the table of terms of these cases; `more` and `mislabelled` are found otherwise."""
    found: list[Finding] = []
    for compared in (kind for point in points_of(cases) for kind in _by_kind(point)):
        known = [case for case in compared if not case.unknown]
        found += comparison_findings(compared)
        found += environment.environment_findings(known, launch)
        found += (finding for case in known for finding in _findings(case, launch))
    kinds = [table(kind) for kind in _by_kind(cases)]
    found += (finding for terms in kinds for finding in mixed_findings(terms))
    found = [*downgrade_imported([*found, *more], imported), *mislabelled]
    arms = dict.fromkeys(case.arm for case in cases)
    return PreflightResult(
        experiment=experiment,
        every=tuple(cases),
        findings=tuple(merge_findings(found)),
        ledger=tuple(_rows(kinds, arms)),
        unverifiable=tuple(dict.fromkeys(filter(None, [*_unverifiable(cases, launch), *(c.unknown for c in cases)]))),
    )


def _by_kind(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases by what a step of them is: a benchmark's load is no term of a training."""
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        kinds.setdefault(case.trainer.step_of, []).append(case)
    return list(kinds.values())


def _rows(kinds: Sequence[Sequence[Term]], arms: Iterable[str]) -> Iterator[LedgerRow]:
    """The rows of each kind; the arms of another kind have none of its settings."""
    others = dict.fromkeys(arms, NONE) if len(kinds) > 1 else {}
    for row in (term.row for terms in kinds for term in terms):
        yield replace(row, values=others | row.values)


def _findings(case: Case, launch: LaunchContext) -> list[Finding]:
    """The findings of one case: its trainer's checks and the general ones.

    An imported run has already shown its pace and its rewards.
    """
    if case.imported and not is_complete(case):
        return []
    general = one_case.CHECKS_OF_IMPORTED if case.imported else one_case.CHECKS
    found = [finding for check in (*case.trainer.checks, *general) for finding in check(case)]
    if not case.imported:
        from workflow.preflight.reward_sources import reward_models

        found += [*one_case.walltime(case, launch), *reward_models(case)]
    return [*found, *environment.arch_list(case, launch)]


def _unverifiable(cases: Sequence[Case], launch: LaunchContext) -> list[str]:
    """What could not be checked, and what the check needs."""
    missing = []
    if waiting := dict.fromkeys(case.arm for case in cases if not (case.imported or case.settings.composed)):
        missing.append(
            f"whether the options of {', '.join(waiting)} exist, and their defaults: not checked yet. When Snakemake "
            "starts, their stacks compose them and refuse a misspelt one, before any training"
        )
    for case in cases:
        if not case.on_gpu or case.unknown:
            continue
        if case.imported or case.arm in launch.paces:
            continue
        if not launch.site.life_s:
            remedy = "set runtime in" if launch.site.profile else "name"
            missing.append(f"checkpoints against walltime: {remedy} the profile (--profile)")
        elif case.workload.get("save_steps"):
            missing.append("checkpoints against walltime: no step was measured yet (give --seconds-per-step X)")
    return missing


def require_possible(plan: Plan, setup: Path | None = None) -> PreflightResult:
    """The preflight of a plan; `UserError` lists every impossible finding, before anything is built."""
    composed, imported = known_files(plan)
    found = preflight(plan, LaunchContext(variables=variables_of(setup)), composed, imported=imported)
    if found.impossible:
        reasons = "\n".join(
            f"  {number}. {', '.join(finding.arms)}: {finding.what}: {finding.why}.\n     change: {finding.change}\n"
            f"     source: {finding.source}"
            for number, finding in enumerate(found.impossible, start=1)
        )
        raise UserError(
            f"experiment {plan.config.experiment} cannot run as it is (nothing was built or submitted):\n{reasons}"
        )
    return found


def write_preflight(
    plan: Plan,
    settings_files: Sequence[Path],
    out: Path,
    imported_files: Sequence[Path] = (),
    setup: Path | None = None,
) -> PreflightResult:
    """Write preflight.json from `<settings_id>.json` files, `imported.json` in the runs' folders and a setup script."""
    composed = {path.stem: read_json(path) for path in settings_files}
    imported = {path.parent.name: read_json(path) for path in imported_files}
    found = preflight(plan, LaunchContext(variables=variables_of(setup)), composed, imported=imported)
    write_json(out, found.as_json())
    return found
