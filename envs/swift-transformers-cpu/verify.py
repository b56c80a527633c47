"""Checks the built stack swift-transformers-cpu; run by `python -m workflow.stacks build`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import SWIFT_CPU
from _verify import main

if __name__ == "__main__":
    sys.exit(main(SWIFT_CPU))
