"""What a profile says of a training job's GPUs and walltime."""

import pytest

from common.errors import UserError
from workflow.slurm.sbatch import gpus_of_gres
from workflow.slurm.site import Site, read_site

CPU = {"nodes": 1, "gpus_per_node": 0}


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("", 0),
        ("gpu", 1),
        ("gpu:8", 8),
        ("gpu:h100:4,gpu:a100:2", 6),
        ("gres/gpu:h100:8(S:0-1)", 8),
        ("gpu:h100:8(S:0,1),license:1", 8),
        ("license:3", 0),
    ],
)
def test_gpus_of_a_node(gres, gpus):
    assert gpus_of_gres(gres) == gpus


def test_a_time_that_yaml_misreads_is_told(tmp_path):
    (tmp_path / "config.yaml").write_text("set-resources:\n  train:\n    runtime: 4:00:00\n")
    says = r"runtime 14400 min is 10 days; did YAML read 4:00:00\? Write 4h or 240 under .*, or 14400m if that is meant"
    with pytest.raises(UserError, match=says):
        read_site(tmp_path)
    (tmp_path / "config.yaml").write_text("set-resources:\n  train:\n    runtime: '4:00:00'\n")
    assert read_site(tmp_path).runtime_min == 240


def test_text_has_quotes_as_snakemake_needs_them_or_not(tmp_path, monkeypatch):
    monkeypatch.setenv("MINE", "lab")
    lines = {"slurm_partition": "\"'all'\"", "slurm_account": "$MINE", "qos": "", "constraint": "a&b"}
    lines |= {"slurm_extra": '"\'--comment=\\"a b\\"\'"', "gres": "'gpu:8'"}
    text = "".join(f"    {key}: {value}\n" for key, value in lines.items())
    (tmp_path / "config.yaml").write_text(f"set-resources:\n  train:\n{text}")
    site = read_site(tmp_path).request().site
    assert (site["partition"], site["account"], site["qos"]) == ("all", "lab", "")
    assert (site["constraint"], site["gres"], site["extra"]) == ("a&b", "gpu:8", {"comment": "a b"})


def test_a_profile_is_read_in_both_its_forms(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("set-resources:\n  train:\n    gres: \"'gpu:h100:8'\"\n    nodes: 2\n    runtime: 20h\n")
    read = read_site(tmp_path)
    assert read == Site({"gres": "gpu:h100:8", "nodes": "2", "runtime": "20h"}, tmp_path)
    assert (read.runtime_min, read.stop_grace_s) == (1200, 120)
    assert read_site(tmp_path).gpus({"nodes": 1, "gpus_per_node": 4}) == 16
    file.write_text(
        'set-resources: ["train:gres=gpu:4", "train:runtime=60", "train:stop_grace_s=600", "other:nodes=9"]\n'
    )
    assert read_site(tmp_path) == Site({"gres": "gpu:4", "runtime": "60", "stop_grace_s": "600"}, tmp_path)
    assert read_site(tmp_path).gpus({"nodes": 3, "gpus_per_node": 4}) == 12
    assert read_site(tmp_path).life_s == 3000.0
    file.write_text("set-resources:\n  train:\n    gres: f(wildcards):gpu:x:y\n    nodes: 2 if True else 1\n")
    assert read_site(tmp_path).gpus(CPU) is None
    (tmp_path / "config.v9+.yaml").write_text("executor: local\n")
    assert read_site(tmp_path).gpus(CPU) == 0, "Snakemake takes a file for its own version first"


def test_a_profile_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match=r"no such profile: .*nowhere .*; known: profiles/local, profiles/slurm$"):
        read_site(tmp_path / "nowhere")
    (tmp_path / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match="is not YAML"):
        read_site(tmp_path)
