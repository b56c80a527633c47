"""Stands for a trainer's job in tests of the launcher: it steps, checkpoints and logs like the real one, in seconds.

What it does wrong is chosen by the STAND_IN variable of the run's `env`: `fail`, `refuse`, `lie` (ends well without
finishing), `kill_self`, `deaf` (ignores SIGTERM), `hang` (after step 2, always), `hang_once`, `no_step` (dies before
its first step), `unfit` and `unfit_once` (its node fails its check, always or in the first attempt), `deaf_at_first`
(the first attempt imports for ever, and hears no signals yet), `chatty` (logs a gigabyte in step 2), `eat` (takes a
gigabyte of memory), `hang_done` (hangs after it has finished), `daemon` (leaves a process that sheds its parents and
its environment). STAND_IN_BROKEN is a folder: on a node for which it has a file `broken-NODE` the check fails.
STAND_IN_STEP_S is a step's time, STAND_IN_SAVE how many steps there are between checkpoints, STAND_IN_SAVE_S how long
one takes, or `go`: until there is a file `go` in the run's folder. STAND_IN_WAIT is a step after which the first
attempt waits for that file, or for a stop. In that folder `journal` has a line for each step, `saves` one for each
checkpoint.

With the argument `--script` it is what a user's script starts: it prints its steps as verl does, and writes neither
metrics.jsonl nor done.json.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

order = json.loads(Path(sys.argv[-1]).read_text())
spec = json.loads(Path(order["spec"]).read_text())
in_script = "--script" in sys.argv
inputs = {} if in_script else json.loads(Path(order["inputs"]).read_text())
attempt_dir, checkpoints = Path(order["attempt_dir"]), Path(order["checkpoint_dir"])
run = attempt_dir.parents[1]
fault = os.environ.get("STAND_IN", "")
save_s = os.environ.get("STAND_IN_SAVE_S", "0")
wait_after = int(os.environ.get("STAND_IN_WAIT", "0"))
stop = False


def on_term(number, frame):
    global stop
    stop = fault != "deaf"


def save(step):
    """As real ones are: a checkpoint counts when it is whole."""
    partial = checkpoints / "partial"
    partial.write_text(str(step))
    if save_s == "go":
        while not (run / "go").exists():
            time.sleep(0.05)
    else:
        time.sleep(float(save_s))
    partial.rename(last)
    with (run / "saves").open("a") as saves:
        saves.write(f"{order['attempt']} {step}\n")


def wait_for_ever():
    print("stand-in: hanging", flush=True)
    while True:
        time.sleep(1)


if fault == "deaf_at_first" and order["attempt"] == 1:
    wait_for_ever()
signal.signal(signal.SIGTERM, on_term)
signal.signal(signal.SIGUSR2, on_term)
faulthandler.register(signal.SIGUSR1, all_threads=True)
checkpoints.mkdir(parents=True, exist_ok=True)
last = checkpoints / "last"
first = int(last.read_text()) + 1 if last.is_file() else 1
print(f"stand-in: from step {first}", flush=True)
if fault == "refuse":
    print("error: options.foo is not a known setting", flush=True)
    sys.exit(2)
broken = Path(os.environ.get("STAND_IN_BROKEN", "/nowhere")) / f"broken-{os.environ.get('SLURMD_NODENAME')}"
if broken.exists() or fault == "unfit" or (fault == "unfit_once" and order["attempt"] == 1):
    print("error: the stack does not work on this node", flush=True)
    sys.exit(69)
if fault == "no_step":
    os.kill(os.getpid(), signal.SIGKILL)
if fault == "eat":
    eaten = []
    for _ in range(64):
        eaten.append(bytearray(os.urandom(2**20)) * 16)
        time.sleep(0.05)
    wait_for_ever()
if fault == "daemon":
    left = f"exec -a left-{attempt_dir.parents[5].name} sleep 600 &"
    subprocess.run(["env", "-i", "setsid", "bash", "-c", left], check=True)
for step in range(first, spec["workload"]["steps"] + 1):
    time.sleep(float(os.environ.get("STAND_IN_STEP_S", "0.05")))
    with (run / "journal").open("a") as journal:
        journal.write(f"{order['attempt']} {step} {os.getpid()}\n")
    row = {"step": step, "time": time.time(), "phases": {"step": 0.05}, "scalars": {}}
    if in_script:
        print(f"step:{step} - actor/pg_loss:0.1 - timing_s/gen:0.03 - timing_s/step:{0.05 + step / 1000}", flush=True)
    else:
        with (attempt_dir / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps(row) + "\n")
    if step % int(os.environ.get("STAND_IN_SAVE", "1")) == 0 or stop:
        save(step)
    if step == wait_after and order["attempt"] == 1:
        while not (run / "go").exists() and not stop:
            time.sleep(0.05)
        if stop:
            save(step)
    if step == 2 and fault == "chatty":
        lines = (b"rollout " * 16 + b"\n") * 2**13
        for _ in range(2**30 // len(lines) + 1):
            os.write(1, lines)
    if step == 2 and (fault == "hang" or (fault == "hang_once" and order["attempt"] == 1)):
        wait_for_ever()
    if fault == "kill_self" and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "fail" and step == 2:
        raise RuntimeError("the loss is not a number")
    if stop:
        sys.exit(75)
if in_script:
    sys.exit(0)
done = {
    "run_id": spec["run_id"],
    "fingerprint": spec["fingerprint"],
    "attempt": order["attempt"],
    "last_step": 1 if fault == "lie" else spec["workload"]["steps"],
    "steps": spec["workload"]["steps"] - first + 1,
    "inputs": {"data_sha256": inputs["data"]["sha256"], "model_sha256": inputs["model"]["sha256"]},
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    "env_threads": os.environ["OMP_NUM_THREADS"],
}
temporary = attempt_dir / ".done"
temporary.write_text(json.dumps(done))
temporary.rename(attempt_dir / "done.json")
if fault == "hang_done":
    wait_for_ever()
