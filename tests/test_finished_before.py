"""A finished run is found by what it trained: another name trains nothing, another configuration is trained."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from common.files import write_json
from workflow.config.entry import _unfinished
from workflow.config.finished_before import finished_before, take_over
from workflow.config.plan import load_plan
from workflow.runs.history import finished_attempt
from workflow.runs.paths import RunPaths

from .quick_site import QuickSite
from .two_arms import two_arms

pytestmark = pytest.mark.promise("a-finished-run-is-found")

FILES = ("spec.json", "done.json")


NAME = "transformers-max_response_length=24-save_steps=1-s0"


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A site that has trained one run."""
    site = QuickSite(tmp_path_factory.mktemp("site"))
    site.config["sweep"] = {"workload.max_response_length": [24], "workload.save_steps": [1]}
    del site.config["arms"]["vllm"]
    assert trained(site)[0] == 1
    return site


@pytest.fixture
def site(first):
    """That site with its first configuration; no test leaves another one."""
    before, results = copy.deepcopy(first.config), first.results
    yield first
    first.config, first.results = before, results


def trained(site):
    """How many trainings a start began; it must end well, and each run of the report must be readable."""
    before = site.trained()
    done = site.snakemake("--until", "collect")
    assert done.returncode == 0, done.stderr
    return site.trained() - before, done.stderr


def rename_arm(site, old, new):
    site.config["arms"] = {new if name == old else name: arm for name, arm in site.config["arms"].items()}
    site.config["baseline"] = new if site.config["baseline"] == old else site.config["baseline"]


def test_another_name_of_a_finished_run_trains_nothing(site, rolloutbench, monkeypatch):
    first = site.results
    site.config["sweep"] = dict(reversed(site.config["sweep"].items()))
    rename_arm(site, "transformers", "hf")
    site.command()
    monkeypatch.chdir(site.folder)
    said = rolloutbench("check", "experiment.yaml")
    assert said.code == 0 and said.out.count("skip: finished before, as results/small/runs/") == 1, said
    dry = site.snakemake("--dry-run")
    assert dry.returncode == 0 and dry.stderr.count("s0: finished before, as results/small/runs/") == 1, dry.stderr
    assert "rule train" not in dry.stdout + dry.stderr and "report" in dry.stdout + dry.stderr
    count, said = trained(site)
    assert count == 0 and "hf-save_steps=1-max_response_length=24-s0: finished before, as results/small/runs/" in said

    site.config["experiment"] = "renamed"
    site.results = site.results.with_name("renamed")
    site.config["sweep"] = {"workload.max_response_length": [24]}
    assert trained(site)[0] == 0
    # It needs nothing of the run that it stands for, and says whose it is.
    first.rename(first.with_name("elsewhere"))
    assert _unfinished(load_plan(site.config)) == []
    first.with_name("elsewhere").rename(first)
    done = json.loads((site.results / "runs" / "hf-max_response_length=24-s0" / "done.json").read_text())
    assert done["trained_as"]["run"] == f"results/small/runs/{NAME}"
    assert done["trained_as"]["attempt"] == 1


def finished(plan, run_id, attempts=1):
    """The files of a run that its last attempt finished."""
    run = plan.runs[run_id]
    for number in range(1, attempts + 1):
        folder = Path(plan.folder) / "runs" / run_id / "attempts" / str(number)
        names = {"run_id": run_id, "fingerprint": run.fingerprint, "attempt": number}
        write_json(folder / "spec.json", run.spec)
        write_json(folder / "attempt.json", names | {"inputs_sha256": {"data_sha256": "d"}})
        write_json(folder / "metrics.jsonl", {"step": number, "of": run_id})
    last = {"last_step": run.spec["workload"].get("steps", 4), "inputs": {"data_sha256": "d"}, "started": 1.0}
    write_json(folder / "done.json", names | last | {"finished": float(len(run_id))})


def test_arms_may_change_names_and_a_resumed_run_takes_all_its_attempts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    raw = two_arms() | {"seeds": [0]}
    before = load_plan(raw)
    finished(before, "transformers-s0")
    finished(before, "vllm-s0", attempts=2)
    swapped = dict(zip(raw["arms"], reversed(raw["arms"].values()), strict=True))
    plan = load_plan(raw | {"arms": swapped})
    take_over(plan)
    assert capsys.readouterr().err.count("finished before, as ") == 2
    for run_id, other, numbers in (("transformers-s0", "vllm-s0", (2, 3)), ("vllm-s0", "transformers-s0", (3,))):
        run = RunPaths(Path(plan.folder) / "runs" / run_id)
        attempt = finished_attempt(run, plan.runs[run_id].fingerprint, inputs={"data_sha256": "d"})
        assert attempt.number == numbers[-1] and json.loads(attempt.done.read_text())["trained_as"]["run"].endswith(
            other
        )
        assert [json.loads(run.attempt(number).metrics.read_text())["of"] for number in numbers] == [other] * len(
            numbers
        )
        assert json.loads(attempt.spec.read_text()) == plan.runs[run_id].spec
        # The old one is as it was.
        assert finished_attempt(run, before.runs[run_id].fingerprint).number == len(numbers) % 2 + 1
    assert _unfinished(plan) == [], "no GPU is needed for them"
    take_over(plan)
    assert "finished before" not in capsys.readouterr().err, "it is this run's own now"


def test_a_scripts_run_counts_in_its_experiment_only(tmp_path, monkeypatch):
    """What its script reads is not hashed."""
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text("python train.py --engine vllm\n")
    options = {"script": str(tmp_path / "run.sh"), "words": ["engine=sglang"]}
    raw = {"experiment": "x", "baseline": "a", "seeds": [0]}
    raw["arms"] = {"a": {"trainer": "command", "engine": "sglang", "options": options}}
    plan = load_plan(raw)
    finished(plan, "a-s0")
    renamed = load_plan(raw | {"baseline": "b", "arms": {"b": raw["arms"]["a"]}})
    assert list(finished_before(renamed)) == ["b-s0"]
    assert finished_before(load_plan(raw | {"experiment": "y"})) == {}


@pytest.mark.full("whole workflows by snakemake")
def test_a_finished_run_stands_for_one_run_of_a_plan(site):
    """Two arms that repeat each other measure what chance does: one run is not both."""
    site.config["arms"]["again"] = {"same_as": "transformers"}
    count, said = trained(site)
    assert count == 1 and "finished before" not in said
    site.config["experiment"] = "renamed"
    site.results = site.results.with_name("renamed")
    count, said = trained(site)
    assert count == 0 and said.count("finished before, as") == 2
    done = [json.loads(file.read_text()) for file in site.results.glob("runs/*/done.json")]
    assert len({one["trained_as"]["run"] for one in done}) == 2


@pytest.mark.promise("a-changed-configuration-is")
def test_a_changed_configuration_is_trained_whatever_snakemake_knows(site):
    """Without its metadata it looks at dates alone, as with `--rerun-triggers mtime`."""

    def change(learning_rate, *known):
        site.config["workload"]["learning_rate"] = learning_rate
        if not known:
            shutil.rmtree(site.folder / ".snakemake", ignore_errors=True)
        before = site.trained()
        done = site.snakemake("--until", "collect", *known)
        assert done.returncode == 0, done.stderr
        fingerprints = [json.loads((site.results / "runs" / NAME / name).read_text())["fingerprint"] for name in FILES]
        assert len(set(fingerprints)) == 1, done.stderr
        return site.trained() - before

    # Back and forth: the finished runs of both are found.
    first = site.config["workload"]["learning_rate"]
    assert change(2e-5) == 1
    assert [change(one, "--rerun-triggers", "mtime") for one in (3e-5, first)] == [1, 0]
