"""Runs `rolloutbench preflight` and the preflight's rules, and prints findings by level, the worst first."""

from __future__ import annotations

import argparse
import functools
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import write_json
from common.findings import EQUALITIES, LEVELS, Finding, Level, read_preflight
from common.messages import print_message
from common.shown import print_lines, shown
from common.verdicts import count_of
from trainers import driver_module
from trainers.cases import Case
from trainers.registry import trainer_named
from workflow.commands.estimate import estimates_of, require_pace
from workflow.config.plan import CONFIG, Plan, load_plan, plan_runs, stack_facts
from workflow.config.reading import parse_config, read_yaml
from workflow.head.train_rule import exposed, machine_lacks, request_errors
from workflow.preflight import PreflightResult, preflight, write_preflight
from workflow.preflight.cases import LaunchContext, known_files
from workflow.preflight.variables import variables_of
from workflow.runs.experiment import clear
from workflow.slurm.commands import SlurmError, limited
from workflow.slurm.site import Site, refusals, site_for
from workflow.stacks.environment import run_in_stack

WIDTH = 100
_HEADINGS: dict[Level, str] = {
    "impossible": "the run would fail, never end, or be mislabelled",
    "unequal": "the arms do not train under equal terms",
    "odd": "it runs, but probably not as intended",
}
_REFUSED = "snakemake refuses these runs before it builds or submits anything"
_SLURM_S = 20.0  # for all questions to Slurm together


def print_preflight(args: argparse.Namespace) -> None:
    """Run `rolloutbench preflight`, on any machine: data and model need not exist here.

    Raises `UserError` after printing if a finding is impossible.
    """
    require_pace(args.seconds_per_step)
    plan = plan_runs(parse_config(read_yaml(args.config or CONFIG)), functools.cache(stack_facts))
    launch = launch_context(plan, args.profile, args.seconds_per_step)
    composed, imported = known_files(plan)
    found = preflight(plan, launch, composed, imported=imported)
    if args.json:
        print(json.dumps({"judged": launch.site.label, **found.as_json()}, indent=1, ensure_ascii=False))
    else:
        print_lines([launch.site.label, "", *preflight_lines(found)])
    if found.impossible:
        raise UserError(f"{found.refusal}: {count_of(len(found.impossible), 'impossible finding')}")


def launch_context(plan: Plan, profile: Path | None, step_s: float | None) -> LaunchContext:
    """Where the runs would go, and how long a step takes: measured in earlier runs, or as given."""
    site = site_for(profile, plan.config.experiment)
    if site.profile is None:
        specs = [run.spec for run in plan.runs.values()]
        lacks = [*machine_lacks(specs), *(f"{what}; {remedy}" for what, remedy in exposed(site, specs))]
        return LaunchContext(variables=variables_of(None), unasked=tuple(lacks))
    estimates, _ = estimates_of(plan, site, step_s)
    paces = {one.run.spec["arm"]: one.pace.step_s for one in reversed(estimates) if one.pace.step_s is not None}
    specs = [one.run.spec for one in estimates if one.action in ("resume", "submit")]
    return LaunchContext(site, paces, variables_of(site.setup), *_request_findings(site, specs))


def _request_findings(site: Site, specs: Sequence[Mapping[str, Any]]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """What is wrong with the jobs that a profile requests, and what Slurm was not asked."""
    source = f"{site.profile}, set-resources: train:"
    why = "the job would be rejected, or wait forever, after the stacks are built"
    open_ports = exposed(site, specs)
    found = [
        Finding(
            "impossible",
            "slurm-request",
            tuple(arms),
            what,
            _REFUSED if (what, remedy) in open_ports else why,
            source,
            remedy,
        )
        for (what, remedy), arms in request_errors(site, specs).items()
    ]
    if not site.on_slurm or not specs:
        return tuple(found), ()
    try:
        with limited(_SLURM_S):
            refused, _ = refusals(site, specs)
    except SlurmError as error:
        return tuple(found), (f"sbatch --test-only: Slurm was not asked ({error})",)
    every = tuple(dict.fromkeys(spec["arm"] for spec in specs))
    found += [
        Finding("impossible", "slurm-refuses", arms or every, f"sbatch refuses {jobs}: {error}", why, source, remedy)
        for jobs, arms, error, remedy in refused
    ]
    return tuple(found), ()


def write_and_summarize(args: argparse.Namespace) -> None:
    """Write preflight.json from the settings that the stacks resolved, and print a line per finding.

    What was printed before the training is not printed again.
    """
    plan = load_plan(args.request)
    found = write_preflight(plan, args.settings, args.out, args.imported, args.setup)
    before = read_preflight(args.before, plan.config.experiment) if args.before else None
    for line in summary_lines(found, before.findings if before else ()):
        print_message(shown(line))
    if found.impossible:
        # Composed settings can show what the defaults did not: fail here rather than in the queue.
        reasons = "; ".join(f"{', '.join(one.arms)}: {one.what} ({one.why}); {one.change}" for one in found.impossible)
        raise UserError(f"{found.refusal}: {reasons}")
    if args.clear:
        clear(plan)


def resolve(args: argparse.Namespace) -> None:
    """Run the rule `settings`."""
    resolve_settings(args.request, args.stack, args.out)


def resolve_settings(request: dict[str, Any], stack: Path, out: Path) -> None:
    """Resolve a trainer's settings with its stack's Python; `UserError` if the trainer rejects them."""
    driver = trainer_named(request["trainer"]).driver
    assert driver is not None
    request_file = out.with_suffix(".request.json")
    write_json(request_file, request)
    done = run_in_stack(
        stack, "trainers.resolve", "--with", driver_module(driver.job_module), "--request", request_file, "--out", out
    )
    request_file.unlink(missing_ok=True)
    if not done or not out.is_file():
        raise UserError("the trainer rejects these settings; nothing was trained (see the message above)")


def preflight_lines(found: PreflightResult) -> Iterator[str]:
    """The output of `rolloutbench preflight`."""
    yield from _head(found)
    numbers = count(1)
    for level in LEVELS:
        findings = [finding for finding in found.findings if finding.level == level]
        yield ""
        yield f"{level} ({len(findings)}): {_HEADINGS[level]}" if findings else f"{level}: nothing"
        for finding in findings:
            yield from _wrapped(f"{_what(finding, found)}  [{finding.code}]", f"{next(numbers):3}. ")
            for name in ("why", "change", "source"):
                yield from _wrapped(getattr(finding, name), f"     {name + ':':8}")
    if found.unverifiable:
        yield ""
        yield "not checked:"
        for reason in found.unverifiable:
            yield from _wrapped(reason, " - ")
    yield ""
    counts = {verdict: len(found.rows(verdict)) for verdict in EQUALITIES}
    yield "ledger: " + ", ".join(f"{rows} {verdict}" for verdict, rows in counts.items() if rows)
    yield from _wrapped(_settings_source(found), "        ")


def summary_lines(found: PreflightResult, known: Sequence[Finding] = ()) -> list[str]:
    """One line per new finding that is not impossible, the unequal ones first."""
    findings = [one for one in found.findings if one.level != "impossible" and one not in known]
    if not findings:
        return []
    total = count_of(len(findings), "finding")
    lines = [f"preflight: {total}; rolloutbench preflight shows why and what to change"]
    for number, finding in enumerate(findings, start=1):
        lines += _wrapped(f"{finding.level}: {_what(finding, found)}", f" {number:2}. ")
    return lines


def _head(found: PreflightResult) -> Iterator[str]:
    """The experiment's name, and a line per arm."""
    yield found.experiment
    cases = {case.arm: case for case in reversed(found.cases)}
    unknown = {case.arm: case for case in found.unknown if case.arm not in cases}
    width = max(map(len, [*cases, *unknown]), default=0)
    for arm in dict.fromkeys(case.arm for case in found.cases):
        case = cases[arm]
        where = f"{case.gpus} x {case.workload.get('gpu') or 'GPU'}" if case.on_gpu else "CPU"
        if case.on_gpu and case.tensor_parallel > 1:
            where += f", {case.tensor_parallel} per engine"
        yield f"  {arm.ljust(width)}  {_system(case)}; {where}{'; imported' * case.imported}"
    for arm, case in unknown.items():
        yield f"  {arm.ljust(width)}  {_system(case)}; imported, settings unknown"


def _system(case: Case) -> str:
    return f"{case.trainer.name} {case.version or '(unknown release)'}, {case.engine.label}"


def _what(finding: Finding, found: PreflightResult) -> str:
    """What was found, preceded by its arms unless it concerns all arms or names them itself."""
    every = {case.arm for case in (*found.cases, *found.unknown)}
    named = all(re.search(rf"(?<![\w.-]){re.escape(arm)}(?![\w-]|\.\w)", finding.what) for arm in finding.arms)
    return finding.what if named or every <= set(finding.arms) else f"{', '.join(finding.arms)}: {finding.what}"


def _settings_source(found: PreflightResult) -> str:
    trained = [case for case in found.cases if not case.imported]
    if not trained:
        return "settings from the runs' sources, or from the experiment"
    if all(case.settings.composed for case in trained):
        return "settings as the stacks composed them"
    return (
        "settings as the experiment gives them; the stacks compose and validate them when "
        f"snakemake runs (results/{found.experiment}/preflight.json)"
    )


def _wrapped(text: str, first: str) -> Iterable[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
