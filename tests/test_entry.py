"""What `run` says of configuration files and profiles that cannot be read: one line, ours."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .importing import ROOT
from .patience import run


@pytest.fixture(scope="module")
def program():
    """The `rolloutbench` program of this checkout's environment."""
    return Path(sys.executable).with_name("rolloutbench")


LOCAL = ("--profile", str(ROOT / "profiles" / "local"))


def said_by(program, folder, config, *options):
    command = [str(program), "run", config, *LOCAL, *options]
    done = run(command, 300, cwd=folder)
    return done.returncode, done.stderr + done.stdout


@pytest.mark.full("whole workflows")
def test_snakemake_is_otherwise_its_own(program, tmp_path):
    """A right file, and a mistake that the Snakefile finds; then what Snakemake itself answers."""
    (tmp_path / "x.csv").write_text("step,phase,seconds\n1,step,2.0\n")
    arm = "{trainer: verl, engine: vllm, import: {version: '0.4.1', runs: [x.csv]}}"
    (tmp_path / "mine.yaml").write_text(f"experiment: x\nbaseline: a\narms: {{a: {arm}}}\n")
    code, said = said_by(program, tmp_path, "mine.yaml", "--dry-run", "--quiet", "rules")
    assert code == 0, said
    code, said = said_by(program, tmp_path, "mine.yaml", "--config", "basline=b", "--dry-run")
    assert code == 1 and "basline is not a known key (did you mean baseline?)" in said and "Traceback" not in said
    assert said_by(program, tmp_path, "mine.yaml", "--no-such-option")[0] == 2


LAUNCHER = ("-m", "workflow.head.launcher", "run", "--spec", "{}", "--inputs", "i", "--stack", "s")
CTRL_C_AT = """
import os, signal, sys

class Finder:
    def find_spec(name, *_):
        if name == os.environ["CTRL_C_AT"]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder)
"""


@pytest.mark.promise("ctrl-c-stops-after")
@pytest.mark.parametrize(
    ("words", "loads"),
    [
        (LAUNCHER, "workflow.head.watch"),
        (("-c", "from rolloutbench import main; main()", "plan"), "common.retry"),
        (("-c", "from rolloutbench import main; main()", "run", "config.yaml", "-n"), "snakemake.cli"),
    ],
)
def test_a_ctrl_c_while_a_program_loads_leaves_no_traceback(words, loads, tmp_path):
    """The signal comes as the program asks for the module, however busy the machine is."""
    (tmp_path / "sitecustomize.py").write_text(CTRL_C_AT)
    env = os.environ | {"PYTHONPATH": str(tmp_path), "CTRL_C_AT": loads}
    command = [sys.executable, *words]
    head = subprocess.run(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert (head.returncode, head.stderr) == (-signal.SIGINT, "")


SITE = {"executor": "slurm", "default-resources": {"slurm_partition": "cpu"}, "jobs": 1}
TRAIN = {"slurm_partition": "all", "cpus_per_task": 8, "runtime": "1-00:00:00", "mem_mb": "800G"}


def test_a_profiles_request_is_understood_in_slurms_forms_and_without_second_quotes(program, tmp_path):
    train = TRAIN | {"slurm_extra": "--exclusive --comment='a b'", "qos": None}
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.yaml").write_text(yaml.safe_dump(SITE | {"set-resources": {"train": train}}))
    command = [str(program), "run", str(ROOT / "config.yaml"), "--dry-run", "--printshellcmds", "--nolock"]
    done = run([*command, "--profile", str(tmp_path / "site")], 300, cwd=tmp_path)
    said = done.stderr + done.stdout
    assert done.returncode == 0, said
    assert "slurm_partition=all slurm_account= qos= " in said and "mem_mb=800000 runtime=1440 " in said
    assert (
        "slurm_extra='--exclusive --comment='\"'\"'a b'\"'\"'' " in said and " gres= nodes=1 cpus_per_task=8 " in said
    )
