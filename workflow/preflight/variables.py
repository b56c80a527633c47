"""Finds environment variables that slow down all arms, or only some."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import UserError
from common.findings import Finding
from engines.reported import GRAPHS, OFF
from node.hardware import reported_environment
from trainers.cases import Case
from workflow.preflight.cases import LaunchContext
from workflow.preflight.texts import finding

THIS_SHELL = "this shell"
_OFF = ("", "0", "false", "off", "no")


@dataclass(frozen=True, slots=True)
class Variable:
    """A row of variables.toml, which says what they mean."""

    name: str
    when: str | list[str]
    cost: str
    source: str
    launches: bool = False

    def costs(self, value: str) -> bool:
        """Whether this value costs time."""
        if self.when == "on":
            return value.strip().lower() not in _OFF
        return value.strip().upper() in self.when


VARIABLES = tuple(
    Variable(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["variable"]
)


def environment_findings(cases: Sequence[Case], launch: LaunchContext) -> Iterator[Finding]:
    """Debugging variables: unequal if set in some arms or if they cost some arms more; else odd."""
    for variable in VARIABLES:
        values = {case: seen for case in cases if case.on_gpu and (seen := _seen(case, variable.name, launch))}
        affected = {case: seen for case, seen in values.items() if variable.costs(seen[0])}
        if not affected:
            continue
        value, setter = next(iter(affected.values()))
        in_all = len(affected) == len(cases)
        if in_all:
            what = f"{variable.name}={value} in {'all arms' if len(cases) > 1 else cases[0].label} ({setter})"
        else:
            others = ", ".join(case.label for case in cases if case not in affected)
            what = f"{variable.name}={value} in {', '.join(case.label for case in affected)}, not in {others}"
        why = variable.cost
        without = [case.label for case in cases if case.engine_terms.get(GRAPHS) == OFF]
        uneven = in_all and variable.launches and 0 < len(without) < len(cases)
        if uneven:
            what += f" slows {' and '.join(without)} more"
            why += f". Here {' and '.join(without)} {'has' if len(without) == 1 else 'have'} none"
        yield Finding(
            level="odd" if in_all and not uneven else "unequal",
            code=variable.name.lower().replace("_", "-"),
            arms=tuple(dict.fromkeys(case.arm for case in affected)),
            what=what,
            why=why,
            source=variable.source,
            change=_change(variable.name, setter, list(affected)),
        )


def arch_list(case: Case, launch: LaunchContext) -> Iterator[Finding]:
    """GPU generations in a form that torch rejects, such as the article's."""
    if not case.on_gpu or (seen := _seen(case, "TORCH_CUDA_ARCH_LIST", launch)) is None:
        return
    value, setter = seen
    wrong = [part for part in re.split(r"[; ]+", value) if part.isdigit()]
    if wrong:
        dotted = f"{wrong[0][:-1]}.{wrong[0][-1]}" if len(wrong[0]) > 1 else f"{wrong[0]}.0"
        change = _change("TORCH_CUDA_ARCH_LIST", setter, [case])
        yield finding("arch-list", case.arm, value=value, setter=setter, dotted=dotted, change=change)


def _seen(case: Case, name: str, launch: LaunchContext) -> tuple[str, str] | None:
    """The value that an arm's processes would see, and who sets it; the arm's own env wins."""
    of_site = None if case.imported else launch.variables.get(name)
    if name in case.env and (of_site is None or of_site[0] != case.env[name]):
        return case.env[name], "the experiment's env"
    return of_site


def _change(name: str, setter: str, cases: Sequence[Case]) -> str:
    if setter == "the experiment's env":
        # The text names no arm if there is one, so that equal findings of several arms merge.
        own = [f"arms.{case.arm}.env" for case in cases] if len(cases) > 1 else ["the arm's own env"]
        places = [f"shared.{case.trainer.name}.env" for case in cases] + own
        return f"remove {name} from {' or '.join(dict.fromkeys(places))}, wherever it is set"
    if setter == THIS_SHELL:
        return f"`unset {name}` before you start snakemake: jobs inherit it"
    return f"remove {name} from {setter}"


def exported(script: str) -> tuple[dict[str, str], set[str]]:
    """The variables that a shell script exports with a known value, and those that it unsets; no file that it sources.

    A script that is too much to follow sets none.
    """
    from workflow.launch_scripts.shell import read_script  # the parser of bash is not a part of Snakemake

    try:
        read = read_script(script)
    except UserError:
        return {}, set()
    found = {name: word.text for name, word in read.exports.items() if not word.unknown}
    words = [[word.text for word in command.words] for command in read.commands]
    unset = {name for texts in words if texts[:1] == ["unset"] for name in texts[1:]}
    return found, unset - set(found)


def variables_of(setup: Path | None, environment: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """The variables that this shell and the site's setup script pass to every training process."""
    found = {name: (value, THIS_SHELL) for name, value in (environment or os.environ).items()}
    if setup is not None:
        try:
            given, unset = exported(setup.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{setup} cannot be read: {error}") from None
        found = {name: value for name, value in found.items() if name not in unset}
        found |= {name: (value, str(setup)) for name, value in given.items()}
    return found


def with_setup(case: Case, launch: LaunchContext) -> Case:
    """A case with what the site's setup script gives it, as far as it affects speed and is no secret."""
    if case.imported or case.unknown:
        return case
    given = {name: value for name, (value, setter) in launch.variables.items() if setter != THIS_SHELL}
    return replace(case, env={**reported_environment(given), **case.env})
