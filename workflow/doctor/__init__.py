"""The doctor: checks of this machine and this site. Here: what a check is, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Found = tuple[str, str, str]
"""Level (passed, warning, failed), what was found, and the remedy."""
Action = Callable[[], Found]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One question about this machine or this site."""

    group: str
    name: str
    action: Action


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found; `remedy` is empty where there is nothing to do."""

    group: str
    name: str
    level: str
    found: str
    remedy: str


def passed(found: str, remedy: str = "") -> Found:
    """All is well; a remedy is then a hint."""
    return "passed", found, remedy


def warning(found: str, remedy: str) -> Found:
    """It works, or may work, and not as well as it could."""
    return "warning", found, remedy


def failed(found: str, remedy: str) -> Found:
    """It will not work."""
    return "failed", found, remedy


def failed_if(required: bool, found: str, remedy: str) -> Found:
    """A failure where the experiment needs it, else a warning."""
    return failed(found, remedy) if required else warning(found, remedy)
