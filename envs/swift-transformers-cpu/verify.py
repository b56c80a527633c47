"""Checks the built stack swift-transformers-cpu; run at its build."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import COMMON, SWIFT, TRACKED
from _verify import main

if __name__ == "__main__":
    sys.exit(main([*COMMON, *TRACKED, *SWIFT]))
