"""Requests that can never run, on a real Slurm with accounting: told before anything is built, in Slurm's words."""

import json
import os
import sys
from pathlib import Path

import yaml

from ..patience import run as run_command
from ..two_arms import two_arms

ROOT = Path(__file__).resolve().parents[2]
ENFORCED = ("AccountingStorageEnforce=associations,limits,qos",)
TRAIN = {
    "slurm_partition": "cpu", "slurm_account": "lab", "cpus_per_task": 2, "runtime": 60, "mem_mb": 1000, "gres": "''",
}  # fmt: skip


def with_limits(cluster, *limits):
    """A cluster in which this user has an account, and a QOS with limits."""
    user = cluster.run("id", "-un").stdout.strip()
    for words in (
        ("add", "account", "lab"),
        ("add", "qos", "short"),
        ("modify", "qos", "short", "set", *limits),
        ("add", "user", user, "account=lab", "qos=normal,short", "DefaultQOS=normal"),
    ):
        assert cluster.run("sacctmgr", "-i", *words).returncode == 0
    return cluster


def typed(cluster, folder, *words, site=None, **train):
    """What a command says of an experiment without GPUs, with these keys for training in the profile, or this one."""
    (folder / "site").mkdir(exist_ok=True)
    light = {"slurm_partition": "cpu", "slurm_account": "lab"}
    site = site or {"executor": "slurm", "default-resources": light, "set-resources": {"train": TRAIN | train}}
    (folder / "site" / "config.yaml").write_text(yaml.safe_dump(site))
    (folder / "mine.yaml").write_text(yaml.safe_dump(two_arms()))
    env = {**os.environ, **cluster.env, "PYTHONPATH": str(ROOT)}
    words = (words[0], "mine.yaml", "--profile", "site", *words[1:])
    done = run_command([sys.executable, "-m", "workflow.cli", *words], 120, cwd=folder, env=env)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def findings(cluster, folder, **train):
    """What `check` finds, by its code."""
    _, said = typed(cluster, folder, "check", "--json", **train)
    return {one["code"]: one for one in json.JSONDecoder().raw_decode(said)[0]["findings"]}


def test_slurm_is_asked_before_anything_is_built(make_cluster, tmp_path):
    cluster = with_limits(make_cluster(extra=ENFORCED), "MaxWall=30", "MaxTRESPerJob=cpu=1")
    code, said = typed(cluster, tmp_path, "check")
    assert "[slurm-re" not in said and "does not answer" not in said, said
    for train, words, key in (
        ({"slurm_account": "nobody"}, "Invalid account or account/partition combination specified", "slurm_account"),
        ({"constraint": "infiniband"}, "Invalid feature specification", "constraint"),
        ({"slurm_extra": "--frobnicate=1"}, "unrecognized option", "slurm_extra"),
        ({"nodelist": "gpu9"}, "Invalid node name specified", "nodelist or exclude"),
    ):
        code, said = typed(cluster, tmp_path, "check", **train)
        assert code == 1 and f"sbatch refuses a training job of transformers, vllm: {words}" in said, said
        assert f"change: correct {key} under set-resources: train: in the profile" in said, said
    assert cluster.jobs() == [], "nothing was submitted"
    site = tmp_path / "site" / "config.yaml"
    builds = yaml.safe_load(site.read_text())
    builds["set-resources"] = {"train": TRAIN, "stack": {"slurm_partition": "cpu-long", "runtime": 480}}
    code, said = typed(cluster, tmp_path, "check", site=builds)
    assert code == 1 and "sbatch refuses a job that builds a stack: " in said, said
    assert "change: correct slurm_partition under set-resources: stack: in the profile" in said, said
    # What Slurm accepts and never starts.
    found = findings(cluster, tmp_path, qos="short")
    assert not found.keys() & {"slurm-request", "slurm-refuses"} and found["limits"]["level"] == "lacking", found
    assert "runtime requests 60 min, and MaxWall of QOS short is 00:30:00" in found["limits"]["what"]
    assert "a job requests cpu=2, and MaxTRES of QOS short is cpu=1" in found["limits"]["what"]
    assert "limits" not in findings(cluster, tmp_path)
    cluster.stop_daemon("slurmctld")
    code, said = typed(cluster, tmp_path, "check")
    assert "sbatch: Slurm does not answer (" in said and "[slurm-refuses]" not in said, said


def test_a_script_for_a_whole_nodes_memory_is_accepted_as_sbatch_accepts_it(cluster, tmp_path):
    """gpu1 has 2000000 MB, of 1024 * 1024 bytes as in sbatch: 1900 GB of that size fit."""
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -p h100 --gres=gpu:h100:8 --mem=1900G -t 60\nsrun python3 train.py --e vllm\n"
    )
    env = {**os.environ, **cluster.env, "PYTHONPATH": str(ROOT)}

    def said(*words):
        done = run_command(words, 120, cwd=tmp_path, env=env)
        assert done.returncode == 0 or words[-1] == "run-ab.yaml", done.stdout + done.stderr
        return done.stdout

    said("sbatch", "--test-only", "run.sh")
    rolloutbench = (sys.executable, "-m", "workflow.cli")
    said(*rolloutbench, "ab", "run.sh", "--vary", "e=vllm,sglang")
    found = said(*rolloutbench, "check", "run-ab.yaml")
    assert "[slurm-refuses]" not in found and "was not asked" not in found, found
