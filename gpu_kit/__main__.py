"""`python -m gpu_kit [STAGE ...]` packs the kit; `python -m gpu_kit`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common.files import ROOT
from common.messages import report_errors
from gpu_kit.pack import kit_lines, write_kit
from gpu_kit.stages import STAGES, stage_named


def main() -> int:
    """Pack the stages that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m gpu_kit", description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"default: all ({', '.join(STAGES)})")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-kit")
    given = parser.parse_args()

    def run() -> None:
        for name in given.stages:
            stage_named(name)
        print("\n".join(kit_lines(write_kit(given.out, given.stages or STAGES), given.out)))

    return report_errors(run)


if __name__ == "__main__":
    sys.exit(main())
