"""Counts the functions of ours that a command calls, and how often it opens each log: `python -m bench.functions`.

Without arguments the command is the verdict of two verl logs of 100 steps. Classes' bodies, lambdas and comprehensions
do not count; what a module calls while it is imported does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = str(Path(__file__).resolve().parents[1]) + os.sep
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's code, not a class's body


def counted(argv: Sequence[str]) -> dict[str, Any]:
    """The functions called by `rolloutbench`, by file; how often it opened each file of the working folder; what it
    printed. In a new process: what was imported before does not count."""
    called: set[tuple[str, str]] = set()
    opened: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & _OPTIMIZED and code.co_name[0] != "<":
            file = code.co_filename
            if file.startswith(ROOT) and f"{os.sep}.venv{os.sep}" not in file:
                called.add((file.removeprefix(ROOT), code.co_qualname))

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | Path):
            path = Path(args[0]).absolute()
            if path.parent == Path.cwd():
                opened[path.name] += 1

    sys.addaudithook(audit)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        sys.setprofile(profile)
        from workflow.cli import main

        main(list(argv))
        sys.setprofile(None)
    files: dict[str, list[str]] = {}
    for file, name in sorted(called):
        files.setdefault(file, []).append(name)
    return {"functions": files, "opened": opened, "printed": printed.getvalue()}


def two_logs(folder: Path, steps: int = 100) -> list[str]:
    """Writes two verl logs; returns the command that compares them."""
    for name, speed in (("a", 1.0), ("b", 0.8)):
        lines = []
        for step in range(1, steps + 1):
            s = speed * (30 + 3 * (step * 7 % 10) / 10)
            lengths = (
                f"response_length/mean:{800 + step % 9}.500 - response_length/max:{2000 + 10 * (step % 9)}.0 - "
                "prompt_length/mean:100.000 - critic/score/mean:0.250"
            )
            times = f"timing_s/gen:{0.7 * s:.3f} - timing_s/update_actor:{0.25 * s:.3f} - timing_s/step:{s:.3f}"
            lines.append(f"(TaskRunner pid=1) step:{step} - {lengths} - {times}\n")
        (folder / f"{name}.log").write_text("".join(lines))
    return ["compare", "one=a.log", "two=b.log", "--verdict-only"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        found = counted(sys.argv[1:] or two_logs(Path(folder)))
    rooms = Counter(file.partition("/")[0] for file, names in found["functions"].items() for _ in names)
    print(json.dumps({"total": rooms.total(), "rooms": rooms, **found}, indent=1))


if __name__ == "__main__":
    main()
