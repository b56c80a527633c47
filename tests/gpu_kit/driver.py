"""A stand-in for a trainer's driver: logs steps, stops on SIGTERM, resumes, writes done.json; SLOW_S is its step."""

import json
import os
import signal
import sys
import time
from pathlib import Path

STEPS = 6

attempt = json.loads(Path(sys.argv[1]).read_text())
folder, kept = Path(attempt["attempt_dir"]), Path(attempt["checkpoint_dir"], "step")
stopping = []
signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
step = int(kept.read_text()) if kept.is_file() else 0
kept.parent.mkdir(parents=True, exist_ok=True)
if "FAIL" in os.environ:
    sys.exit("ValueError: the driver fails here")
while step < STEPS:
    time.sleep(float(os.environ.get("SLOW_S", "0.05")))
    step += 1
    line = {"step": step, "phases": {"step": 1.0, "step/rollout": 0.75, "step/update": 0.25}, "scalars": {}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    kept.write_text(str(step))
    if stopping and step < STEPS:
        sys.exit(75)
done = {"first_step": 1, "last_step": step, "versions": {}, "hardware": {}, "resolved": {"engine": {"start_s": 3.0}}}
(folder / "done.json").write_text(json.dumps(done))
