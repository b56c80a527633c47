"""Defines a release of TRL or ms-swift; each folder's `releases.py` has a row for each, and no other file names one."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainers.timers.tree import TimerTree, release_distance


@dataclass(frozen=True)
class HfRelease:
    """A release series, such as 1.16."""

    series: str
    trees: tuple[TimerTree, ...]
    """What its runs log: those with our driver, if it is driven from here, and the release's own."""
    timers: Mapping[str, str] = field(default_factory=dict)
    """Its own timer -> the phase of our driver that has its seconds; empty: a part of the phases around it."""


def driven(releases: Sequence[HfRelease], package: str) -> HfRelease:
    """The row of the installed release, of those that are driven from here; of an undeclared one the nearest."""
    rows = [release for release in releases if release.timers]
    version = importlib.metadata.version(package)
    return min(rows, key=lambda row: release_distance(version, row.series))
