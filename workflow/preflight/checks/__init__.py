"""What every check of a case takes and makes: the launch context, the outer variables, a finding."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import UserError
from common.findings import Finding, Level
from trainers.cases import Case
from workflow.slurm.site import Site

_EXPORT = re.compile(
    r"^\s*(?:export\s+|declare\s+-x\s+)([A-Z][A-Z0-9_]*)=(\"[^\"]*\"|'[^']*'|[^\s;#&|]*)", re.MULTILINE
)


@dataclass(frozen=True)
class LaunchContext:
    """Where and how fast the runs would go, as far as it is known."""

    site: Site = field(default_factory=Site)
    paces: Mapping[str, float] = field(default_factory=dict)
    """Arm -> seconds per step."""
    variables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Variable -> (value, who sets it), for all arms alike."""
    requests: tuple[Finding, ...] = ()
    """What is wrong with the jobs that the profile requests."""
    unasked: tuple[str, ...] = ()
    """What Slurm was not asked, and why."""


def finding_of(case: Case, level: Level, code: str, what: str, why: str, source: str, change: str) -> Finding:
    """A finding of one case's arm."""
    return Finding(level, code, (case.arm,), what, why, source, change)


def exported(script: str) -> dict[str, str]:
    """The variables that a shell script exports literally; computed and sourced values are not seen."""
    return {name: value.strip("\"'") for name, value in _EXPORT.findall(script)}


def variables_of(profile: Path | None, environment: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """The variables that this shell and the profile's setup.sh pass to every training process."""
    found = {name: (value, "this shell") for name, value in (environment or os.environ).items()}
    script = profile / "setup.sh" if profile is not None else None
    if script is not None and script.is_file():
        try:
            found |= {name: (value, str(script)) for name, value in exported(script.read_text("utf-8")).items()}
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{script} cannot be read: {error}") from None
    return found
