"""Checks this machine and this site; this module defines a check and what it may find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.findings import Finding, Level

Outcome = str | Sequence[Finding]
"""What is there and as it should be, or what is not."""


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """One check of this machine or this site; the action raises `Unchecked` if it cannot be made."""

    name: str
    action: Callable[[], Outcome]


@dataclass
class SiteResult:
    """The results of all checks."""

    passed: dict[str, str] = field(default_factory=dict)
    """Check -> what is there."""
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """What could not be checked, and what a check needs."""


class Unchecked(Exception):
    """What could not be checked, and what a check needs."""


def site_finding(level: Level, code: str, what: str, change: str, arms: Sequence[str] = ()) -> list[Finding]:
    """A finding of a site: what it says needs no reason and no source."""
    return [Finding(level, code, tuple(arms), what, "", "", change)]


def lacking(code: str, what: str, change: str, required: bool = True) -> list[Finding]:
    """What the runs need and this site does not have; odd where no experiment requires it."""
    return site_finding("lacking" if required else "odd", code, what, change)
