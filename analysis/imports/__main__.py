"""Imports a run that was trained elsewhere: `python -m analysis.imports SPEC_JSON --out .../steps.parquet`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.imports.import_run import CACHE, write_import
from common.messages import report_errors


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.imports", description="Import one run's steps.")
    parser.add_argument("spec", metavar="SPEC_JSON", help="the run's spec as JSON")
    parser.add_argument("--out", type=Path, required=True, help="the steps.parquet to write, in the run's folder")
    parser.add_argument("--cache", type=Path, default=CACHE, help="the folder for downloads from wandb")
    args = parser.parse_args(argv)
    spec = json.loads(args.spec)
    return report_errors(lambda: print(f"{args.out}: {write_import(spec, args.out, args.cache)} rows"))


if __name__ == "__main__":
    sys.exit(main())
