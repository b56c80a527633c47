"""Checks the built stack verl09-sglang; run at its build, and with --gpu on a compute node."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import COMMON, SGLANG, SGLANG_ACTIVATION, TRACKED, VERL, on_gpus
from _verify import main

if __name__ == "__main__":
    sys.exit(main([*COMMON, *TRACKED, *VERL, *SGLANG, SGLANG_ACTIVATION, *on_gpus("9.0")]))
