"""No training starts before the preflight: real Snakemake, launchers and jobs; the stacks' Python is a stand-in."""

import json
import re

import pytest
import yaml

from .quick_site import QuickSite
from .site_folder import ROOT

LOG = ROOT / "tests" / "goldens" / "data" / "formats" / "trl-console-vllm.log"


@pytest.fixture
def site(tmp_path):
    return QuickSite(tmp_path)


def rules(done):
    """The rules of the jobs that began or would, in their order."""
    heads = re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):$", done.stdout + done.stderr, re.MULTILINE)
    return [str(head) for head in heads]


def test_no_training_starts_before_the_preflight_or_beside_what_it_finds_impossible(site):
    """Found only in what the stacks make of the settings; what is finished stays."""
    # Nothing else keeps a training waiting.
    prepared = site.snakemake("--until", "inputs")
    assert prepared.returncode == 0, prepared.stderr
    vllm = site.config["arms"].pop("vllm")
    first = site.snakemake("--until", "train")
    assert first.returncode == 0, first.stderr
    order = rules(first)
    assert order.index("preflight") < order.index("train") and site.trained() == 1

    site.config["arms"]["vllm"] = vllm
    site.compose(vllm_tensor_parallel_size=3)
    refused = site.snakemake("--keep-going")
    assert refused.returncode != 0 and "4 attention heads" in refused.stderr, refused.stderr
    assert "train" not in rules(refused) and site.trained() == 1
    assert site.attempts("transformers-s0") == [1] and not site.attempts("vllm-s0")
    site.config["arms"].pop("vllm")
    corrected = site.snakemake("--until", "train")
    assert corrected.returncode == 0 and "train" not in rules(corrected), corrected.stderr


@pytest.mark.full("whole workflows by snakemake")
def test_no_training_waits_for_an_import_and_the_report_has_what_its_log_shows(site):
    site.config["arms"]["old"] = {"trainer": "trl", "engine": "vllm", "import": {"version": "1.9", "runs": [str(LOG)]}}
    done = site.snakemake("--until", "train")
    assert "train" in rules(done) and "import_run" not in rules(done), done.stderr
    assert not (site.results / "preflight.json").exists(), "it has the imports, too"
    done = site.snakemake()
    assert done.returncode == 0, done.stderr
    assert {"import_run", "ledger"} <= set(rules(done)) and "train" not in rules(done)
    whole = json.loads((site.results / "preflight.json").read_text())
    before = json.loads((site.results / "checked.json").read_text())
    codes, known = ({finding["code"] for finding in one["findings"]} for one in (whole, before))
    assert known <= codes
    for line in (finding["what"] for finding in before["findings"]):
        assert line not in done.stderr, "it was printed before the training"
    assert site.attempts("vllm-s0") == [1]


def test_the_script_that_setup_names_counts_and_no_other(tmp_path):
    """At the start, and in what the rule writes."""
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "setup.sh").write_text("export TORCH_CUDA_ARCH_LIST=90\n")
    site = QuickSite(tmp_path, ("trl-transformers", "trl-vllm"), profile=profile)
    for name in site.config["arms"]:
        site.config["arms"][name] = {"trainer": "trl", "engine": name, "stack": f"trl-{name}"}
    site.config["workload"] |= {"gpus_per_node": 1}

    def with_setup(setup):
        train = {"slurm_partition": "gpu", "runtime": 60, "setup": setup}
        settings = {"cores": 2, "nolock": True, "set-resources": {"train": train}}
        (profile / "config.yaml").write_text(yaml.safe_dump(settings))
        return site.snakemake("--until", "preflight")

    setup = tmp_path / "site.sh"
    setup.write_text("export TORCH_CUDA_ARCH_LIST=90\n")
    refused = with_setup(str(setup))
    assert refused.returncode != 0 and f"TORCH_CUDA_ARCH_LIST=90 ({setup})" in refused.stderr, refused.stderr
    assert not site.jobs.exists()
    written = site.results / "preflight.json"
    setup.write_text("export CUDA_LAUNCH_BLOCKING=1\n")
    done = with_setup(str(setup))
    assert done.returncode == 0 and "TORCH_CUDA_ARCH_LIST" not in written.read_text(), done.stderr
    assert "cuda-launch-blocking" in [finding["code"] for finding in json.loads(written.read_text())["findings"]]
