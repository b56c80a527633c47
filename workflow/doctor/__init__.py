"""Checks this machine and this site; this module defines a check and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Outcome = tuple[str, str, str]  # the level (passed, warning, failed), what was found, and the remedy


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One check of this machine or this site."""

    group: str
    name: str
    action: Callable[[], Outcome]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check; `remedy` is empty if there is nothing to do."""

    group: str
    name: str
    level: str
    found: str
    remedy: str


def passed(found: str, remedy: str = "") -> Outcome:
    """All is well; the remedy is only a hint."""
    return "passed", found, remedy


def warning(found: str, remedy: str) -> Outcome:
    """It works or may work, but not as well as it could."""
    return "warning", found, remedy


def failed(found: str, remedy: str) -> Outcome:
    return "failed", found, remedy


def failed_if(required: bool, found: str, remedy: str) -> Outcome:
    """A failure if the experiment needs it, else a warning."""
    return failed(found, remedy) if required else warning(found, remedy)
