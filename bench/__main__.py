"""Measure what is claimed and print it as a table: `python -m bench`, or `python -m bench NAME...` for some of it.

Each line holds what was measured, the bound that is promised for two cores, and, where there is one, the same work
done the plain way in the same run, as a ratio: machines are noisy, ratios less so.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable

from bench.measure import Line

# Each is loaded when it is its turn: what one measures another need not be able to import.
BENCHES = {
    "costs": "costs:command_lines",
    "imports": "costs:import_lines",
    "quickstart": "costs:quickstart_lines",
    "coverage": "coverage:coverage_lines",
    "history-marks": "history_marks:mark_lines",
    "savings": "savings:saving_lines",
    "hooks": "hooks:hook_lines",
    "slurm": "slurm:slurm_lines",
}
# Not a part of `python -m bench`: it takes as long as it is told.
STORM = "storm"


def _bench(name: str) -> Callable[..., list[Line]]:
    module, _, function = name.partition(":")
    found: Callable[..., list[Line]] = getattr(importlib.import_module(f"bench.{module}"), function)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    known = (*BENCHES, STORM)
    parser.add_argument("names", nargs="*", default=list(BENCHES), metavar="NAME", help=f"of: {', '.join(known)}")
    parser.add_argument("--minutes", type=float, default=30.0, help="of a storm (default: 30)")
    parser.add_argument("--seed", type=int, default=1, help="of a storm (default: 1)")
    args = parser.parse_args()
    names = args.names
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such bench: {', '.join(unknown)}; there are {', '.join(known)}")
    lines: list[Line] = []
    for name in names:
        print(f"measuring: {name} ...", file=sys.stderr, flush=True)
        if name == STORM:
            lines += _bench("storm:storm_lines")(args.minutes, args.seed)
        else:
            lines += _bench(BENCHES[name])()
    table = [("what", "measured", "bound", "", "the plain way"), *(line.cells() for line in lines)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0 if all(line.within for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
