"""`python -m analysis.report --plan results/X/plan.json --results results/X --out results/X`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.report.content import read_content
from analysis.report.outputs import write_report
from common.errors import UserError
from common.verdicts import count_of


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Render an experiment's report.")
    parser.add_argument("--plan", type=Path, required=True, help="results/<experiment>/plan.json")
    parser.add_argument("--results", type=Path, required=True, help="results/<experiment>, with its runs/")
    parser.add_argument("--out", type=Path, required=True, help="where report.html, report.md, tables/, figures/ go")
    parser.add_argument("--baseline", metavar="ARM", help="compare against this arm instead of the plan's baseline")
    parser.add_argument("--stacks", type=Path, metavar="DIR", help=".stacks, to show what each stack's check found")
    parser.add_argument(
        "--preflight", type=Path, help="what the preflight found (default: preflight.json beside the results)"
    )
    parser.add_argument(
        "--all-runs", action="store_true", help="leave an earlier report as it is unless every planned run can be read"
    )
    args = parser.parse_args(argv)
    try:
        content = read_content(args.plan, args.results, args.baseline, args.stacks, args.preflight)
        left_out = [v.text for v in content.verdicts if v.code == "run-left-out"]
        if args.all_runs and left_out:
            raise UserError("the report was not made:\n" + "\n".join(left_out))
        write_report(content, args.out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for headline in content.headlines:
        print(headline.sentence)
    if content.no_comparison:
        print(content.no_comparison)
    serious = sum(v.level != "note" for v in content.verdicts)
    print(f"{args.out / 'report.html'}" + (f" ({count_of(serious, 'thing')} to read first)" if serious else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
