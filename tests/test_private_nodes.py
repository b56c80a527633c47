"""A run that listens on a port which asks nobody needs the site's word that nobody else reaches it."""

import pytest
import yaml

from .importing import ROOT, run_snakemake

TRAIN = {"slurm_partition": "h100", "gres": "gpu:h100:8", "cpus_per_task": 180, "runtime": "20h"}
RAY = "starts servers at the node's address that ask nobody for a password: "
SERVER = "exchanges weights between vLLM's server and the trainer through a port that asks nobody for a password: "
EXPOSED = [("camino-2025", RAY), ("gpu-smoke", RAY), ("swift-colocate-server-async", SERVER)]
REMEDY = "set private_nodes: true under set-resources: train: in the profile"


def site(folder, on_slurm=True, **train):
    """A profile with these keys for training."""
    (folder / "site").mkdir(exist_ok=True)
    profile = {"set-resources": {"train": TRAIN | train}, "executor": "slurm", "jobs": 1}
    if not on_slurm:
        profile = {"set-resources": [f"train:{key}={value}" for key, value in train.items()], "cores": 4}
    (folder / "site" / "config.yaml").write_text(yaml.safe_dump(profile))
    return "--profile", "site"


@pytest.mark.parametrize("on_slurm", [True, False])
@pytest.mark.parametrize(("name", "what"), EXPOSED)
def test_check_refuses_it_until_the_site_says_so(rolloutbench, tmp_path, name, what, on_slurm):
    words = ("check", ROOT / "experiments" / f"{name}.yaml")
    refused = rolloutbench(*words, *site(tmp_path, on_slurm))
    assert refused.code == 1 and what in refused.words and REMEDY in refused.words, refused.words
    for word in ("true", "'true'", True, "yes") if on_slurm and name == "camino-2025" else ("true",):
        said = rolloutbench(*words, *site(tmp_path, on_slurm, private_nodes=word)).words
        assert what not in said, said
    if on_slurm:
        refused = rolloutbench(*words, *site(tmp_path, private_nodes="h100"))
        assert refused.code == 1 and "private_nodes 'h100' is not true or false" in refused.words, refused.words


def test_snakemake_starts_nothing_until_the_site_says_so(tmp_path):
    raw = yaml.safe_load((ROOT / "experiments" / "camino-2025.yaml").read_text(encoding="utf-8"))
    raw["workload"] |= {"data": {"source": "builtin:arithmetic"}, "model": {"source": "builtin:small-qwen2"}}
    (tmp_path / "built-in.yaml").write_text(yaml.safe_dump(raw))
    done = run_snakemake(tmp_path, "built-in.yaml", "-n", *site(tmp_path))
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1 and RAY in told and REMEDY in told and "Traceback" not in told, told
    assert not (tmp_path / "results").exists() and not (tmp_path / ".stacks").exists()


def test_the_first_hour_with_gpus_says_it_and_still_lists_the_runs(rolloutbench):
    told = rolloutbench("new", "x.yaml", "--gpus", "8").words
    assert "next: if no other user runs on a job's nodes" in told, told
    assert 'set-resources: ["train:machine=100", "train:private_nodes=true"] in profiles/local/config.yaml' in told
    code, told = (said := rolloutbench("check", "x.yaml")).code, said.words
    assert code == 1 and "vllm-s0 verl" in told and "4 runs of experiment x" in told, told
    assert "impossible: nothing" in told and REMEDY in told[told.index("lacking (") :] and "[ports]" in told, told


def test_with_a_profile_of_slurm_it_says_the_same(rolloutbench, tmp_path):
    told = rolloutbench("new", "x.yaml", "--gpus", "8", "--partition", "h100").words
    assert "private_nodes: true in profiles/x/config.yaml" in told, told
    code, told = (said := rolloutbench("check", "x.yaml")).code, said.words
    assert code == 1 and "vllm-s0 verl" in told and REMEDY in told and "[slurm-request]" in told, told
    why = told[told.index("[slurm-request]") :].partition("change:")[0]
    assert "another user's program could run as you" in why and "wait forever" not in why, told
    profile = tmp_path / "profiles" / "x" / "config.yaml"
    profile.write_text(profile.read_text().replace("# private_nodes: true", "private_nodes: true"))
    assert "private_nodes" not in rolloutbench("check", "x.yaml").words
