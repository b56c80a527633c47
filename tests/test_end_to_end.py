"""The whole way for real: `make quickstart`, both stacks, both engines, wandb, the report. Only the sizes are small."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from . import patience
from .site_folder import ROOT, STACKS, Site

pytestmark = pytest.mark.full("trainings with both engines; tests/slurm/test_training.py trains the quickstart")
VENV = Path(sys.prefix)


@pytest.fixture(scope="module")
def site(tmp_path_factory, stack_python):
    """The site after `make quickstart`: two arms, one seed."""
    for stack in STACKS:
        stack_python(stack)
    one = Site(tmp_path_factory.mktemp("site"))
    for name in ("Makefile", "scripts", "envs", "pyproject.toml"):
        (one.folder / name).symlink_to(ROOT / name)
    (one.folder / "config.yaml").write_text(yaml.safe_dump(one.config, sort_keys=False))
    # The environment of these tests is as good as one of this folder.
    make = ["make", "-o", f"{VENV}/controller.stamp", f"VENV={VENV}", "quickstart"]
    finished = patience.run(make, 900, cwd=one.folder, env=one.env)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    # A make that another one has started says its folder first.
    assert "\nvllm vs transformers: not resolved, one run an arm" in f"\n{finished.stdout}", finished.stdout
    return one


def test_every_file_of_the_contract_is_there_and_both_engines_trained_the_same_on_the_same_threads(site):
    runs = [site.results / "runs" / f"{arm}-s0" for arm in ("transformers", "vllm")]
    first, second = (json.loads((run / "done.json").read_text()) for run in runs)
    for run, done in zip(runs, (first, second), strict=True):
        assert (done["attempt"], done["last_step"]) == (1, 4)
        assert done["fingerprint"] == json.loads((run / "spec.json").read_text())["fingerprint"]
        assert list((run / "attempts" / "1" / "wandb").glob("offline-run-*/run-*.wandb"))
        assert len((run / "attempts" / "1" / "metrics.jsonl").read_text().splitlines()) == 4
    assert (first["inputs"], first["hardware"]) == (second["inputs"], second["hardware"])
    for package in ("torch", "trl", "transformers"):
        assert first["versions"][package] == second["versions"][package]
    for name in ("report.html", "report.md", "tables/steps.parquet", "tables/comparison.csv", "figures/phases.svg"):
        assert (site.results / name).stat().st_size > 0


def test_the_reports_numbers_are_the_trainers(site):
    """From metrics.jsonl to the comparison by plain arithmetic, against the table that the report shows."""
    seconds = {}
    tokens = {}
    for arm in ("transformers", "vllm"):
        lines = (site.results / "runs" / f"{arm}-s0" / "attempts" / "1" / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines][1:]  # one warm-up step
        seconds[arm] = sum(row["phases"]["step"] for row in rows)
        tokens[arm] = sum(row["scalars"]["response_tokens"] for row in rows)
    table = pd.read_csv(site.results / "tables" / "comparison.csv").iloc[0]
    raw = seconds["transformers"] / seconds["vllm"]
    assert table["raw_speedup"] == pytest.approx(raw, rel=1e-9)
    assert table["tokens_ratio"] == pytest.approx(tokens["vllm"] / tokens["transformers"], rel=1e-9)
    verdict = (site.results / "report.md").read_text().splitlines()[2]
    # Other tests train beside it.
    told = verdict.replace(", on a busy machine", "")
    assert told.startswith("**vllm vs transformers: not resolved, one run an arm: ")
    (verdict,) = json.loads((site.results / "verdict.json").read_text())["arms"]
    estimates = pd.read_csv(site.results / "tables" / "estimates.csv").set_index("estimate")["value"]
    (ratio,) = verdict["ratios"]
    assert ratio["value"] == [estimates["equal_work" if ratio["unit"] == "at equal work" else "per_step"]] * 2


def test_snakemakes_own_report_can_be_made(site):
    made = site.snakemake("--report", str(site.folder / "snakemake-report.zip"))
    assert made.returncode == 0, made.stderr
    assert (site.folder / "snakemake-report.zip").stat().st_size > 0


def test_an_imported_arm_is_compared_with_a_trained_one(site):
    """The transformers run again, as somebody else would have it: wandb's offline folder and nothing beside it."""
    before = site.config
    wandb = next((site.results / "runs" / "transformers-s0" / "attempts" / "1" / "wandb").glob("offline-run-*"))
    old = {"trainer": "trl", "engine": "transformers", "import": str(wandb)}
    site.config = before | {"seeds": [0], "baseline": "old", "arms": {"old": old, "vllm": before["arms"]["vllm"]}}
    done = site.snakemake()
    site.config = before
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.attempts("vllm-s0") == [1], "the trained arm is as it was"
    seconds = {}
    for run_id in ("old-s0", "transformers-s0", "vllm-s0"):
        steps = pd.read_parquet(site.results / "runs" / run_id / "steps.parquet")
        whole = steps[(steps.kind == "phase") & (steps.name == "step")].set_index("step").value
        assert list(whole.index) == [1, 2, 3, 4]
        seconds[run_id] = whole[1:].sum()  # one warm-up step
    assert seconds["old-s0"] == pytest.approx(seconds["transformers-s0"], rel=1e-9)
    comparison = pd.read_csv(site.results / "tables" / "comparison.csv").iloc[0]
    assert comparison["raw_speedup"] == pytest.approx(seconds["old-s0"] / seconds["vllm-s0"], rel=1e-9)
    ledger = json.loads((site.results / "preflight.json").read_text())["ledger"]
    assert {row["setting"] for row in ledger if row["values"].get("old") not in (None, "unknown")}


def test_replays_of_a_trained_runs_lengths_stand_beside_the_training(site):
    before, runs = site.config, site.results / "runs"
    trained = pd.read_parquet(runs / "vllm-s0" / "steps.parquet")
    lengths = {"lengths": {"source": str(runs / "vllm-s0" / "steps.parquet")}}
    alone = {f"{name}-alone": arm | {"trainer": "replay", "options": lengths} for name, arm in before["arms"].items()}
    alone["vllm-alone"]["options"] = lengths | {"engine": {"gpu_memory_utilization": 0.3, "enforce_eager": True}}
    alone["vllm-alone"]["env"] = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    site.config = before | {"seeds": [0], "arms": before["arms"] | alone}
    done = site.snakemake()
    site.config = before
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.attempts("vllm-s0") == [1], "the trained arms are as they were"

    def made(steps):
        of_kind = steps[(steps.kind == "sample") & (steps.name == "response_length")]
        return {step: list(values) for step, values in of_kind.groupby("step")["value"]}

    assert {step: len(lengths) for step, lengths in made(trained).items()} == {1: 8, 2: 8, 3: 8, 4: 8}
    for name in alone:
        assert made(pd.read_parquet(runs / f"{name}-s0" / "steps.parquet")) == made(trained)
    verdicts = json.loads((site.results / "verdict.json").read_text())["arms"]
    assert [one["arm"] for one in verdicts] == ["vllm", "vllm-alone"]
