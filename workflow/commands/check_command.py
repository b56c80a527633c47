"""Runs `rolloutbench check`: may this experiment start on this site, and what would it cost."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.errors import UserError
from common.findings import EQUALITIES, LEVELS, Equality, Finding, LedgerRow, merge_findings
from common.messages import join_first
from common.retry import READ_PATIENCE_S, retry_io
from common.shown import print_lines
from common.verdicts import count_of
from workflow.checks import SiteResult, lacking
from workflow.checks.site_checks import PATIENCE_S, site_checks, start_checks
from workflow.commands.finding_lines import finding_lines, head_lines, settings_source, wrapped
from workflow.commands.run_costs import Cost, cost_lines, cost_of
from workflow.commands.start_runs import run_line
from workflow.config.entry import require_readable, require_sources
from workflow.config.plan import Plan, plan_runs, require_there, stack_facts
from workflow.config.reading import parse_config, read_yaml
from workflow.preflight import PreflightResult, preflight
from workflow.preflight.cases import LaunchContext, known_files, settings_requests
from workflow.preflight.composed import LIMIT_S, compose_checks
from workflow.preflight.variables import variables_of
from workflow.slurm.site import Site, site_for
from workflow.stacks import found_names, load_stack, stack_names

_REFUSED = ("lacking", "impossible")
# Such runs start and train, but never as they are meant: Snakemake goes on with an experiment that has some.
_MISTAKES = ("save-steps", "not-expanded")


def check(args: argparse.Namespace) -> None:
    """Run `rolloutbench check`; raises `UserError` after printing if the runs cannot start."""
    if args.config is None:
        check_machine(args)
    else:
        check_experiment(args)


def check_machine(args: argparse.Namespace) -> None:
    """Check this machine and this site for any experiment; a stack that cannot be built here is only odd."""
    site = site_for(args.profile)
    stacks = [load_stack(name) for name in (*stack_names(), *found_names())]
    found = start_checks(site_checks(site, stacks, [], required=False, across_nodes=args.across_nodes))()
    judged = f"this machine, {site.label}"
    if args.json:
        content = {"judged": judged, "passed": found.passed, "findings": [one.as_dict() for one in found.findings]}
        _print_json(content | {"unverifiable": found.unchecked})
    else:
        lines = [judged, "", "passed:", *(line for name, text in found.passed.items() for line in _passed(name, text))]
        print_lines([*lines, *finding_lines(found.findings, ("lacking", "odd")), *_unchecked_lines(found.unchecked)])
    _refuse("this machine", found.findings)


@dataclass(frozen=True)
class CheckedExperiment:
    """All that is known about an experiment before it starts."""

    plan: Plan
    site: Site
    cost: Cost
    of_site: SiteResult
    found: PreflightResult
    """All findings, those of the site with them."""


def check_experiment(args: argparse.Namespace) -> None:
    """Check an experiment on its site: what runs and costs, what is lacking, impossible, unequal and odd."""
    one = _checked(args)
    name = one.plan.config.experiment
    judged = f"{args.config}: {count_of(len(one.plan.all_runs), 'run')} of experiment {name}, {one.site.label}"
    if args.json:
        content: dict[str, Any] = {"judged": judged, "runs": one.cost.as_json(), "passed": one.of_site.passed}
        _print_json(content | one.found.as_json())
    else:
        print_lines([judged, "", *_lines(one)])
    _refuse(f"{args.config}: {name}", one.found.findings, one.found)
    if not args.json:
        print(f"next: {run_line(args.config, args.profile)}")


def _checked(args: argparse.Namespace) -> CheckedExperiment:
    plan = plan_runs(parse_config(read_yaml(args.config)), functools.cache(stack_facts))
    site = site_for(args.profile, plan.config.experiment)

    def costs() -> Cost:
        return cost_of(plan, site, args.seconds_per_step)

    cost = retry_io(costs, "the results", READ_PATIENCE_S, for_others=False)
    # Where nothing starts, nothing is needed.
    stacks = [load_stack(name) for name in dict.fromkeys(run["stack"] for run in cost.starting) if name]
    known, imported = known_files(plan)
    composed = dict(known)
    checks = []
    if cost.starting:
        checks += site_checks(site, stacks, cost.starting, required=True, across_nodes=args.across_nodes)
        checks += compose_checks(plan, composed, {run["run_id"] for run in cost.starting})
    wait = start_checks(checks, LIMIT_S + PATIENCE_S)
    inputs = [*_input_findings(plan)]
    launch = LaunchContext(site, cost.paces, variables_of(site.setup))
    of_site = wait()
    # Settings of one arm as composed and of another as given would differ in all defaults.
    whole = composed if composed.keys() >= settings_requests(plan).keys() else known
    of_settings = preflight(plan, launch, whole, imported=imported)
    found = of_settings.with_site([*of_site.findings, *inputs], of_site.unchecked)
    if cost.starting:
        found = replace(found, findings=tuple(merge_findings(map(_as_mistake, found.findings))))
    return CheckedExperiment(plan, site, cost, of_site, found)


def _input_findings(plan: Plan) -> Iterator[Finding]:
    """What of an experiment's inputs is missing here, or is not what the configuration says."""
    for check in (require_there, require_readable, require_sources):
        try:
            check(plan)
        except UserError as error:
            for line in str(error).splitlines():
                what, _, change = line.rpartition("; ")
                yield from lacking("inputs", what or line, change if what else "")
            return


def _as_mistake(finding: Finding) -> Finding:
    return replace(finding, level="impossible") if finding.code in _MISTAKES else finding


def _lines(one: CheckedExperiment) -> Iterator[str]:
    yield from cost_lines(one.cost)
    yield ""
    yield from head_lines(one.found)
    yield from finding_lines(one.found.findings, LEVELS, one.found)
    yield from _unchecked_lines(one.found.unverifiable)
    yield ""
    if counts := [_counted(verdict, rows) for verdict in EQUALITIES if (rows := one.found.rows(verdict))]:
        yield from wrapped(", ".join(counts), "ledger: ")
        yield from wrapped(settings_source(one.found), "        ")
    yield from wrapped(", ".join(one.of_site.passed), "passed: ")


def _counted(verdict: Equality, rows: Sequence[LedgerRow]) -> str:
    """How many terms have a verdict, and which these are where the arms differ."""
    names = f" ({join_first([row.setting for row in rows], 3)})" if verdict in ("mixed", "different") else ""
    return f"{len(rows)} {verdict}{names}"


def _passed(name: str, text: str) -> Iterator[str]:
    yield from wrapped(text, f"  {name:14} ")


def _unchecked_lines(unchecked: Sequence[str]) -> Iterator[str]:
    if unchecked:
        yield ""
        yield "not checked:"
        for reason in unchecked:
            yield from wrapped(reason, " - ")


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=1, ensure_ascii=False))


def _refuse(what: str, findings: Sequence[Finding], found: PreflightResult | None = None) -> None:
    """`UserError` if a finding keeps the runs from starting."""
    counts = {level: sum(one.level == level for one in findings) for level in _REFUSED}
    if any(counts.values()):
        told = " and ".join(f"{count} {level}" for level, count in counts.items() if count)
        cannot = found.refusal if found and counts["impossible"] else f"{what} cannot start here as it is"
        raise UserError(f"{cannot}: {told} (above, each with its remedy)")
