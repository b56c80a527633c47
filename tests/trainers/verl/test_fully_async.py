"""The ledger of verl 0.9.1's `fully_async` loop, by the queue, counts, batches and sums of verl itself."""

import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from workflow.cli import main

pytestmark = pytest.mark.full("verl's own queue")
BATCH, CAPACITY = 4, 6
COMMAND = (
    "verl==0.9.1\n+ python3 -m verl.experimental.fully_async_policy.fully_async_main "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8\n"
)


def test_the_ledger_of_verls_own_queue(verl_python, tmp_path):
    script = Path(__file__).with_name("fully_async_pieces.py")
    done = subprocess.run([verl_python("0.9.1"), script], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *log, counts = done.stdout.strip().splitlines()
    counts = json.loads(counts)
    # Each sample that came is in one place: verl's own arithmetic, which the ledger rests on.
    for one in counts:
        assert one["total_produced"] == one["total_consumed"] + one["dropped_samples"] + one["queue_size"]
    assert counts[-1]["dropped_samples"] > 0
    words = []
    for arm in "ab":
        text = "\n".join(log) + "\n"
        # The second arm's steps take a little longer.
        text = text if arm == "a" else text.replace("timing_s/step:2", "timing_s/step:3")
        (tmp_path / f"{arm}.log").write_text(COMMAND + text)
        words.append(f"{arm}={tmp_path / arm}.log")
    more = ["--trainer", "verl", "--release", "0.9.1", "--mode", "fully_async", "--report", str(tmp_path / "out")]
    assert main(["compare", *words, *more]) == 0
    run = pd.read_parquet(tmp_path / "out" / "tables" / "loops.parquet").iloc[0]
    assert run["partial_share"] == 0.25 and run["trainer_wait_share"] == pytest.approx(5 / 20.5, abs=0.01)
    assert run["stale"] > 0 and run["generated"] >= run["stale"] + run["in_flight"]
    # verl writes its counts when the first sample of a batch comes into the queue: they lag by what was taken since.
    assert abs(run["unaccounted"]) <= BATCH + CAPACITY
