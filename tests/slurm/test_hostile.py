"""Commands that look, where files cannot be read: a preloaded library (faults.c) refuses them."""

import os
import subprocess
import sys
import time

import pytest
import yaml

from ..job.run_bench import ROOT
from ..runs.make_runs import MadeRun, write


@pytest.mark.promise("status-and-check-wait")
@pytest.mark.parametrize("words", [["status", "--experiment", "mine"], ["check", str(ROOT / "config.yaml")]])
@pytest.mark.parametrize("kind", ["116 ", "5 !"])
def test_commands_that_look_wait_for_files_that_cannot_be_read(faults, tmp_path, words, kind):
    name = yaml.safe_load((ROOT / "config.yaml").read_text())["experiment"] if words[0] == "check" else "mine"
    made = MadeRun(tmp_path / "results" / name, "vllm-s0").job(cluster="local").attempt(steps=4)
    write(made.paths.experiment / "plan.json", {"runs": ["vllm-s0"], "fingerprints": {"vllm-s0": made.fingerprint}})
    (tmp_path / "faults").write_text("".join(f"{kind}{part}\n" for part in ("/plan.json", "runs/vllm-s0/order.json")))
    env = {**os.environ, "LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(tmp_path / "faults"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "workflow.cli", *words]
    with (tmp_path / "said").open("w") as said:
        looks = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=said, stderr=said)
        while looks.poll() is None and "trying again" not in (tmp_path / "said").read_text():
            time.sleep(0.1)
        (tmp_path / "faults").unlink()
        looks.wait()
    told = (tmp_path / "said").read_text()
    assert looks.returncode == 0 and told.count("trying again for 30 s") == 1, told
    assert " vllm-s0 " in f" {told.partition('trying again')[2]}".replace("\n", " ")
