"""Logs of any length, made from the recorded ones."""

from __future__ import annotations

import re
from pathlib import Path

LOGS = Path(__file__).resolve().parents[1] / "goldens" / "data" / "formats"


def console(engine: str, count: int = 100) -> str:
    """A console of so many steps, from the recorded steps of the goldens."""
    lines = (LOGS / f"verl-console-{engine}-0.log").read_text(encoding="utf-8").splitlines()
    steps = [line for line in lines if "timing_s/step" in line]
    made = [re.sub(r"\bstep:\d+", f"step:{n}", steps[n % len(steps)], count=1) for n in range(1, count + 1)]
    return "\n".join([lines[0], *made]) + "\n"
