"""Measures a newcomer's wait: a fresh clone with empty package caches, then the same again with nothing to do."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.measure import ROOT, Line, cost_of


def quickstart_lines() -> list[Line]:
    """`make quickstart` in a fresh clone of what is committed: cold, and once more."""
    with tempfile.TemporaryDirectory(dir=ROOT.parent, prefix="bench-quickstart-") as folder:
        clone = Path(folder) / "clone"
        cost_of(["git", "clone", "--quiet", str(ROOT), str(clone)])
        cold = {"UV_CACHE_DIR": f"{folder}/uv", "PIP_CACHE_DIR": f"{folder}/pip", "XDG_CACHE_HOME": f"{folder}/cache"}
        first = cost_of(["make", "quickstart"], cwd=clone, env=cold)
        again = cost_of(["make", "quickstart"], cwd=clone, env=cold)
    return [
        Line("quickstart, cold package cache", first.seconds, 480, "s"),
        Line("quickstart again, nothing to do", again.seconds, 5, "s"),
    ]
