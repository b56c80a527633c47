"""Stands for a trainer of several processes: they meet, rank 0 trains as the stand-in does, the others wait for it.

What each saw is in rank-<n>.json of the attempt's folder. STAND_IN=lose_a_rank kills rank 1 in the first attempt;
rank 0 then breaks, as one does that has lost its connection.
"""

import json
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path

SEEN = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG")
order = json.loads(Path(sys.argv[-1]).read_text())
folder, rank = Path(order["attempt_dir"]), int(os.environ["RANK"])
(folder / f"rank-{rank}.json").write_text(json.dumps({name: os.environ.get(name) for name in SEEN}))
meet = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
lost = os.environ.get("STAND_IN") == "lose_a_rank" and order["attempt"] == 1
if rank == 0:
    with socket.create_server(meet) as server:
        others = [server.accept() for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
    if lost:
        others[0][0].recv(1)
        sys.exit("Connection closed by peer")
    runpy.run_path(str(Path(__file__).with_name("stand_in_trainer.py")))
    sys.exit()
while True:
    try:
        connection = socket.create_connection(meet)
        break
    except OSError:
        time.sleep(0.05)
if lost and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while not (folder / "done.json").exists():
    time.sleep(0.05)
