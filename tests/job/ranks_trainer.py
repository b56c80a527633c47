"""Stands for a trainer of several processes: rank 0 trains as the stand-in does, the others wait for its end.

What each saw is in rank-<n>.json of the attempt's folder. RANKS_TRAINER=lose_a_rank kills rank 1 in the first attempt;
rank 0 then breaks, as one does that has lost its connection.
"""

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

SEEN = (
    *("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"),
)
order = json.loads(Path(sys.argv[-1]).read_text())
folder, rank = Path(order["attempt_dir"]), int(os.environ["RANK"])
(folder / f"rank-{rank}.json").write_text(json.dumps({name: os.environ.get(name) for name in SEEN}))
lost = os.environ.get("RANKS_TRAINER") == "lose_a_rank" and order["attempt"] == 1
if rank == 0 and not lost:
    runpy.run_path(str(Path(__file__).with_name("stand_in_trainer.py")))
    sys.exit()
while rank == 0 and not (folder / "lost").exists():
    time.sleep(0.05)
if rank == 0:
    sys.exit("Connection closed by peer")
if lost and rank == 1:
    (folder / "lost").touch()
    os.kill(os.getpid(), signal.SIGKILL)
while not (folder / "done.json").exists():
    time.sleep(0.05)
