"""A run that listens on a port which asks nobody needs the site's word that nobody else reaches it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .preflight.plans import ROOT

PROGRAMS = Path(sys.executable).parent
TRAIN = {"slurm_partition": "h100", "gres": "gpu:h100:8", "cpus_per_task": 180, "runtime": "20h"}
RAY = "starts servers at the node's address that ask nobody for a password: "
SERVER = "exchanges weights between vLLM's server and the trainer through a port that asks nobody for a password: "
EXPOSED = [("camino-2025", RAY), ("gpu-smoke", RAY), ("swift-colocate-server-async", SERVER)]
REMEDY = "set private_nodes: true under set-resources: train: in the profile"


@pytest.fixture
def said(tmp_path):
    """What a program says of an experiment with these keys for training in the profile, and its exit code."""

    def run(*words, on_slurm=True, **train):
        (tmp_path / "site").mkdir(exist_ok=True)
        profile = {"set-resources": {"train": TRAIN | train}, "executor": "slurm", "jobs": 1}
        if not on_slurm:
            profile = {"set-resources": [f"train:{key}={value}" for key, value in train.items()], "cores": 4}
        (tmp_path / "site" / "config.yaml").write_text(yaml.safe_dump(profile))
        command = [str(PROGRAMS / words[0]), *map(str, words[1:]), "--profile", "site"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)

    return run


def experiment(name, folder=None):
    """An experiment's file, or with a folder a copy whose data and model are built in."""
    file = ROOT / "experiments" / f"{name}.yaml"
    if folder is None:
        return file
    raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    raw["workload"] |= {"data": {"source": "builtin:arithmetic"}, "model": {"source": "builtin:small-qwen2"}}
    (folder / file.name).write_text(yaml.safe_dump(raw))
    return folder / file.name


@pytest.mark.parametrize("on_slurm", [True, False])
@pytest.mark.parametrize(("name", "what"), EXPOSED)
def test_check_refuses_it_until_the_site_says_so(said, name, what, on_slurm):
    code, told = said("rolloutbench", "check", experiment(name), on_slurm=on_slurm)
    assert code == 1 and what in told and REMEDY in told, told
    _, told = said("rolloutbench", "check", experiment(name), on_slurm=on_slurm, private_nodes="true")
    assert what not in told, told


@pytest.mark.parametrize("word", ["true", "'true'", True, "yes"])
def test_snakemake_starts_nothing_until_the_site_says_so(said, word, tmp_path):
    config = experiment("camino-2025", tmp_path)
    words = ("snakemake", "-n", "-s", ROOT / "workflow" / "Snakefile", "--configfile", config)
    code, told = said(*words)
    assert code == 1 and RAY in told and REMEDY in told, told
    code, told = said(*words, private_nodes=word)
    assert code == 0 and RAY not in told, told


def test_what_is_no_such_word_is_refused(said, tmp_path):
    code, told = said("rolloutbench", "check", experiment("camino-2025", tmp_path), private_nodes="h100")
    assert code == 1 and "private_nodes 'h100' is not true or false" in told, told


def told_by(folder, *words):
    command, env = [str(PROGRAMS / "rolloutbench"), *words], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


def test_the_first_hour_with_gpus_says_it_and_still_lists_the_runs(tmp_path):
    code, told = told_by(tmp_path, "new", "x.yaml", "--gpus", "8")
    assert code == 0 and "next: if no other user runs on a job's nodes" in told, told
    assert 'set-resources: ["train:machine=100", "train:private_nodes=true"] in profiles/local/config.yaml' in told, (
        told
    )
    code, told = told_by(tmp_path, "check", "x.yaml")
    assert code == 1 and "vllm-s0 verl" in told and "4 runs of experiment x" in told, told
    assert "impossible: nothing" in told and REMEDY in told[told.index("lacking (") :] and "[ports]" in told, told


def test_with_a_profile_of_slurm_it_says_the_same(tmp_path):
    code, told = told_by(tmp_path, "new", "x.yaml", "--gpus", "8", "--partition", "h100")
    assert code == 0 and "private_nodes: true in profiles/x/config.yaml" in told, told
    code, told = told_by(tmp_path, "check", "x.yaml")
    assert code == 1 and "vllm-s0 verl" in told and REMEDY in told and "[slurm-request]" in told, told
    why = told[told.index("[slurm-request]") :].partition("change:")[0]
    assert "another user's program could run as you" in why and "wait forever" not in why, told
    profile = tmp_path / "profiles" / "x" / "config.yaml"
    profile.write_text(profile.read_text().replace("# private_nodes: true", "private_nodes: true"))
    assert "private_nodes" not in told_by(tmp_path, "check", "x.yaml")[1]
