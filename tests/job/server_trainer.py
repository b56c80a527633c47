"""Stands for a trainer with a server beside it: it trains as the stand-in does, and asks the server when it ends.

What it saw, and whether the server answered after the last step, is in trainer.json of the attempt's folder.
"""

import json
import os
import runpy
import sys
from pathlib import Path

from workflow.job.server import is_healthy

SEEN = (
    "ROLLOUTBENCH_SERVER", "ROLLOUTBENCH_SERVER_SECRET", "ROLLOUTBENCH_MEET", "ROLLOUTBENCH_SHARE",
    "CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "NO_PROXY",
)  # fmt: skip
folder = Path(json.loads(Path(sys.argv[-1]).read_text())["attempt_dir"])
try:
    runpy.run_path(str(Path(__file__).with_name("stand_in_trainer.py")))
finally:
    if os.environ.get("RANK", "0") == "0":
        seen = {name: os.environ.get(name) for name in SEEN}
        told = {
            **seen,
            "answered": is_healthy(os.environ["ROLLOUTBENCH_SERVER"], os.environ["ROLLOUTBENCH_SERVER_SECRET"]),
        }
        (folder / "trainer.json").write_text(json.dumps(told))
