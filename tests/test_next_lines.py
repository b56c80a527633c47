"""Every command line that a command prints as the next one works where it was printed, typed as it is."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(sys.executable).parent
SCRIPT = """\
#!/bin/bash
#SBATCH --partition=h100 --gres=gpu:8 --time=60
python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm data.train_files=rows.jsonl \\
  actor_rollout_ref.model.path=./model data.train_batch_size=8 actor_rollout_ref.rollout.n=8 \\
  algorithm.adv_estimator=grpo trainer.total_training_steps=4
"""
# What prints one, and how often it does.
PRINTING = {
    "new my.yaml --engines transformers": 2,
    "new 'my own.yaml' --engines transformers": 2,
    "new my.yaml --gpus 1 --engines vllm": 2,
    "new my.yaml --gpus 8 --partition h100": 2,
    "new --from run.sh": 2,
    "ab run.sh --vary data.seed=1,2 --save ab.yaml": 1,
    "ab run.sh --vary actor_rollout_ref.rollout.name=vllm,sglang --partition h100": 1,
    "check cpu.yaml": 1,
    "check cpu.yaml --profile profiles/local": 1,
    "report cpu.yaml": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a launch script, its files, a profile and an experiment."""
    here = tmp_path_factory.mktemp("my work")
    (here / "run.sh").write_text(SCRIPT)
    (here / "rows.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text("{}")
    raw = yaml.safe_load((ROOT / "config.yaml").read_text())
    raw |= {"experiment": "cpu", "baseline": "transformers", "arms": {"transformers": raw["arms"]["transformers"]}}
    (here / "cpu.yaml").write_text(yaml.safe_dump(raw))
    (here / "profiles").mkdir()
    (here / "profiles" / "local").symlink_to(ROOT / "profiles" / "local")
    return here


def say(folder, typed, words):
    """What a command line says in a shell that knows the program, or one where it is typed by its path."""
    path = os.environ["PATH"] if typed else f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(["bash", "-c", words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("words", PRINTING)
def test_next_lines_work(folder, words):
    here, typed = folder, [*PRINTING].index(words) % 2 == 0
    for file in ("my.yaml", "my own.yaml", "run.yaml", "ab.yaml", "profiles/my", "profiles/run"):
        subprocess.run(["rm", "-rf", here / file], check=True)
    program = shlex.quote(str(PROGRAMS / "rolloutbench")) if typed else "rolloutbench"
    code, said = say(here, typed, f"{program} {words}")
    assert code == 0 or words.startswith("report"), said
    lines = re.findall(rf"(?m)(?:^|\s){re.escape(program)} ((?:check|run) .*)", said)
    assert len(lines) == PRINTING[words], said
    for line in lines:
        code, told = say(here, typed, f"{program} {line.partition('    #')[0]} {'--dry-run' * line.startswith('run')}")
        assert "unrecognized" not in told and "Traceback" not in told and "no such profile" not in told, told
        # What this machine cannot start is said as that, with its remedy.
        assert code == 0 or re.search(r"lacking \(|impossible \(|private_nodes|nodes or their network", told), told


@pytest.mark.parametrize("words", ["cpu.yaml -n -q", "-n -q cpu.yaml", "-n --configfile cpu.yaml -q cpu.yaml"])
def test_options_of_a_run_may_stand_on_either_side_of_its_configuration(folder, words):
    done = subprocess.run(
        [str(PROGRAMS / "rolloutbench"), "run", *words.split()], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "--configfile cpu.yaml -n" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("command", ["status", "cancel"])
def test_a_run_can_be_looked_at_where_its_data_is_not(folder, command):
    raw = yaml.safe_load((folder / "cpu.yaml").read_text())
    raw["workload"]["data"] = {"source": "/scratch/of/the/nodes/rows.jsonl", "prompt_column": "question"}
    raw["workload"]["model"] = {"source": "/scratch/of/the/nodes/model"}
    (folder / "elsewhere.yaml").write_text(yaml.safe_dump(raw | {"experiment": "elsewhere"}))
    done = subprocess.run(
        [str(PROGRAMS / "rolloutbench"), command, "elsewhere.yaml"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "no such file" not in said, said
    assert command == "cancel" or "transformers-s0" in said, said
