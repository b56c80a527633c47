"""Blows a storm over runs on a real Slurm for as long as it is told, and counts what did and did not hold.

The long form of tests/slurm/test_storm.py: twelve runs at a time, a new one where one has ended. What dies, freezes
and lies is in tests/slurm/strikes.py, what must hold in tests/slurm/storm.py.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import Line
from tests.slurm.cluster import Cluster, why_not
from tests.slurm.runs import build_faults
from tests.slurm.storm import Storm


def storm_lines(minutes: float, seed: int) -> list[Line]:
    """A storm's figures; where something did not hold, what it was goes to stderr, and the results are kept."""
    if reason := why_not():
        print(f"not measured: {reason}", file=sys.stderr)
        return []
    # Short names: a socket's path holds 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="rbstorm"))
    began = time.monotonic()
    with Cluster(Path(tempfile.mkdtemp(prefix="rbs"))) as cluster:
        storm = Storm(cluster, folder / "storm", build_faults(folder), seed, renew=True)
        try:
            storm.rage(minutes * 60)
            storm.settle()
        finally:
            storm.end()
            for log in cluster.folder.glob("*.log"):
                shutil.copy(log, folder)
    lines = _lines(storm, (time.monotonic() - began) / 60)
    if storm.wrong:
        print(*storm.wrong, f"kept: {folder}", sep="\n", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return lines


def _lines(storm: Storm, minutes: float) -> list[Line]:
    counts = storm.counts
    others = len(storm.runs) - counts["finished once"] - counts["cancelled runs"]
    return [
        Line("storm and calm", minutes, None, "min"),
        Line("runs", len(storm.runs), None, ""),
        Line("... finished exactly once", counts["finished once"], None, ""),
        Line("... cancelled", counts["cancelled runs"], None, ""),
        Line("... neither", others, 0, ""),
        Line("jobs", counts["jobs"], None, ""),
        Line("attempts", counts["attempts"], None, ""),
        Line("heads started", counts["heads"], None, ""),
        *(Line(f"strikes: {kind.replace('_', ' ')}", count, None, "") for kind, count in storm.struck().items()),
        Line("strikes", sum(storm.struck().values()), None, ""),
        Line("looks at status", counts["looks"], None, ""),
        Line("... that told what was not so", counts["lies"], 0, ""),
        Line("steps trained", counts["steps"], None, ""),
        Line("... again, since the last checkpoint", counts["steps again"], None, ""),
        Line("... again, beyond a checkpoint", counts["steps beyond a checkpoint"], 0, ""),
        Line("what must hold and did not", len(storm.wrong), 0, ""),
    ]
