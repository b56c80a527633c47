"""Every command line that a command prints as the next one works where it was printed, typed as it is."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from workflow.commands import start_runs
from workflow.config.plan import load_plan
from workflow.config.reading import read_yaml
from workflow.slurm.site import read_site

ROOT = Path(__file__).resolve().parents[1]
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


def typed(monkeypatch, by_path):
    """The program as it is typed: by its path, or by a name that the shell knows. The first word of what it prints."""
    path = Path(sys.executable).with_name("rolloutbench")
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setenv("PATH", os.environ["PATH"] if by_path else f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return shlex.quote(str(path)) if by_path else path.name


@pytest.mark.parametrize("words", PRINTING)
def test_next_lines_work(folder, rolloutbench, monkeypatch, words):
    """What Snakemake is started with is read as it reads it: profile and configuration."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    program = typed(monkeypatch, by_path=[*PRINTING].index(words) % 2 == 0)
    for file in ("my.yaml", "my own.yaml", "run.yaml", "ab.yaml"):
        Path(file).unlink(missing_ok=True)
    for made in ("my", "run", "run-ab"):
        shutil.rmtree(Path("profiles", made), ignore_errors=True)
    started = []
    monkeypatch.setattr(start_runs, "snakemake", started.append)
    said = rolloutbench(*shlex.split(words))
    assert said.code == 0 or words.startswith("report"), said
    lines = re.findall(rf"(?m)(?:^|\s){re.escape(program)} ((?:check|run) .*)", said.out + said.err)
    assert len(lines) == PRINTING[words], said
    for line in lines:
        told = rolloutbench(*shlex.split(line, comments=True))
        # What this machine cannot start is said as that, with its remedy.
        assert told.code == 0 or re.search(r"lacking \(|impossible \(|private_nodes", told.out + told.err), told
        if line.startswith("run"):
            given = started.pop()
            named = {flag: Path(given[given.index(flag) + 1]) for flag in ("-s", "--profile", "--configfile")}
            assert load_plan(read_yaml(named["--configfile"])).runs and named["-s"].is_file()
            assert not read_site(named["--profile"]).request().errors or "private_nodes" in said.out


@pytest.mark.parametrize("words", ["cpu.yaml -n -q", "-n --configfile cpu.yaml -q cpu.yaml"])
def test_options_of_a_run_may_stand_on_either_side_of_its_configuration(folder, rolloutbench, monkeypatch, words):
    monkeypatch.chdir(folder)
    started = []
    monkeypatch.setattr(start_runs, "snakemake", started.append)
    said = rolloutbench("run", *words.split())
    assert said.code == 0 and "--configfile cpu.yaml -n" in said.out, said
    assert started[0][-1] in ("-q", "cpu.yaml"), started


@pytest.mark.parametrize("command", ["status", "cancel"])
def test_a_run_can_be_looked_at_where_its_data_is_not(folder, rolloutbench, command):
    raw = yaml.safe_load((folder / "cpu.yaml").read_text())
    raw["workload"]["data"] = {"source": "/scratch/of/the/nodes/rows.jsonl", "prompt_column": "question"}
    raw["workload"]["model"] = {"source": "/scratch/of/the/nodes/model"}
    Path("elsewhere.yaml").write_text(yaml.safe_dump(raw | {"experiment": "elsewhere"}))
    said = rolloutbench(command, "elsewhere.yaml")
    assert said.code == 0 and "no such file" not in said.words, said
    assert command == "cancel" or "transformers-s0" in said.out, said
