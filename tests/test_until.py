"""`seeds: {until, most}`: pairs of runs are added until the verdict is resolved."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from common.errors import UserError
from common.verdicts import FIRST_LOOK
from workflow.config.model import Until
from workflow.config.plan import load_plan
from workflow.config.to_train import pairs_wanted, wanted_runs

from .patience import run as run_patiently
from .trainers.command.script_bench import FORMATS, program
from .two_arms import two_arms

pytestmark = pytest.mark.promise("seeds-until-most-goes")

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = r"""#!/bin/bash
case "$*" in *=sglang*) engine=sglang;; *) engine=vllm;; esac
echo "$engine-$ROLLOUTBENCH_SEED" >> "$BENCH/calls"
[ ! -e "$BENCH/fail-$engine-$ROLLOUTBENCH_SEED" ] || exit 1
cat "$BENCH/console-$engine-$ROLLOUTBENCH_SEED"
"""
UNTIL = {"until": 1.05, "most": 6}
# The natural logarithm of each run's step time, relative to its arm's.
NOISE = {"vllm": (0.0, 0.09, 0.02, 0, 0, 0), "sglang": (0.02, 0.07, 0.01, 0, 0, 0)}


def plan(seeds):
    return load_plan(two_arms() | {"seeds": seeds})


def test_the_runs_are_those_of_the_same_seeds_in_a_list():
    until, listed = plan(UNTIL), plan(list(range(6)))
    assert {one.run_id: one.fingerprint for one in until.runs.values()} == {
        one.run_id: one.fingerprint for one in listed.runs.values()
    }
    assert "most" not in listed.as_json() and until.as_json()["most"] == 6


def test_an_imported_arm_is_compared_by_the_logs_that_there_are():
    raw = two_arms() | {"seeds": UNTIL}
    raw["arms"]["logs"] = {"trainer": "verl", "engine": "vllm", "import": str(FORMATS / "verl-console-vllm-0.log")}
    assert list(load_plan(raw).first_pairs(1)) == ["transformers-s0", "vllm-s0", "logs-s0"]
    alone = {name: raw["arms"][name] for name in ("vllm",)}
    with pytest.raises(UserError, match="until needs a second arm"):
        load_plan(raw | {"arms": alone, "baseline": "vllm"})


def test_an_experiment_of_logs_alone_has_all_that_there_are():
    """The report then says how many more logs would resolve the verdict."""
    arms = {
        engine: {"trainer": "verl", "engine": engine, "import": str(FORMATS / f"verl-console-{engine}-0.log")}
        for engine in ("vllm", "sglang")
    }
    logs = load_plan({"experiment": "logs", "baseline": "vllm", "arms": arms, "seeds": UNTIL})
    assert list(wanted_runs(logs, None)) == list(logs.imports) and len(logs.imports) == 2


def test_the_next_pair_is_wanted_while_the_last_look_is_open():
    assert Until.model_validate(UNTIL).least == FIRST_LOOK
    looks = {}

    def wanted():
        return pairs_wanted(plan(UNTIL), lambda pairs: looks.get(pairs, {}))

    assert wanted() == 2
    looks[2] = UNTIL | {"more": 3}
    assert wanted() == 3, "one pair after the other, however many are likely"
    looks[3] = UNTIL | {"more": 0}
    assert wanted() == 3
    looks[3]["until"] = 1.1
    assert wanted() == 3, "a look for another question is made again"
    looks |= {pairs: UNTIL | {"more": 1} for pairs in range(2, 6)}
    assert wanted() == 6
    assert list(plan(UNTIL).first_pairs(1)) == ["transformers-s0", "vllm-s0"]


def slower(console, factor):
    """A console of verl with all times multiplied."""
    times = r"(timing_s/\w+|perf/time_per_step):([\d.]+)"
    return re.sub(times, lambda found: f"{found[1]}:{float(found[2]) * factor:.3f}", console)


@pytest.fixture
def experiment(tmp_path):
    """A folder with an experiment of a script in two engines: sglang is 1.5 times as fast, with noise between runs."""
    program(tmp_path / "bin" / "python3", PROGRAM)
    lines = (FORMATS / "verl-console-vllm-0.log").read_text()
    for engine, ratio in (("vllm", 1.0), ("sglang", 1.5)):
        for seed, noise in enumerate(NOISE[engine]):
            text = slower(lines, math.exp(noise) / ratio)
            (tmp_path / f"console-{engine}-{seed}").write_text(text)
    (tmp_path / "run.sh").write_text('#!/bin/bash\npython3 -m verl.trainer.main_ppo rollout.name=vllm "$@"\n')
    rolloutbench(tmp_path, "ab", "run.sh", "--vary", "rollout.name=vllm,sglang")
    raw = yaml.safe_load((tmp_path / "run-ab.yaml").read_text())
    (tmp_path / "run-ab.yaml").write_text(yaml.safe_dump(raw | {"seeds": UNTIL}, sort_keys=False))
    yield tmp_path


def env(folder):
    return {**os.environ, "BENCH": str(folder), "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}


def rolloutbench(folder, *words):
    command = [str(Path(sys.executable).with_name("rolloutbench")), *words]
    return subprocess.run(command, cwd=folder, env=env(folder), capture_output=True, text=True, check=True).stdout


def snakemake_command(profile):
    command = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "workflow" / "Snakefile")]
    return [*command, "--profile", str(profile), "--configfile", "run-ab.yaml"]


def snakemake(folder):
    return run_patiently(snakemake_command(ROOT / "profiles" / "local"), 300, cwd=folder, env=env(folder))


@pytest.mark.full("a whole workflow by snakemake")
def test_pairs_are_added_until_the_verdict_is_known(experiment):
    """It stops where an arm fails in one seed, and goes on there."""
    results = experiment / "results" / "run-ab"
    assert "least 2 run pairs" in rolloutbench(experiment, "check", "run-ab.yaml")
    (experiment / "fail-sglang-2").touch()
    failed = snakemake(experiment)
    assert failed.returncode != 0 and "sglang-s2" in failed.stderr
    assert sorted(path.name for path in (results / "looks").iterdir()) == ["2.json"]
    assert "2 run pairs: not resolved; about 1 more of at most 4" in (results / "logs" / "look-2.log").read_text()
    assert "likely 3 run pairs" in rolloutbench(experiment, "check", "run-ab.yaml")
    (experiment / "fail-sglang-2").unlink()
    done = snakemake(experiment)
    assert done.returncode == 0, done.stderr
    trained = (experiment / "calls").read_text().split()
    assert sorted(set(trained)) == [f"{engine}-{seed}" for engine in ("sglang", "vllm") for seed in range(3)]
    assert len(trained) == 7, "only what failed was trained again"
    (arm,) = json.loads((results / "verdict.json").read_text())["arms"]
    assert (arm["verdict"], arm["runs"]) == ("+", [3, 3])
    assert "3 runs against 3, 5 steps each" in (results / "report.md").read_text()
    (spent,) = [
        one for one in json.loads((results / "report.json").read_text())["findings"] if one["code"] == "pairs-spent"
    ]
    assert "the other 3 were not needed, which saved about" in spent["text"]
    assert "the verdict is known after 3 run pairs" in rolloutbench(experiment, "check", "run-ab.yaml")
    assert "6 finished, 6 not needed of 12 runs" in rolloutbench(experiment, "status", "run-ab.yaml")
    assert "Nothing to be done" in snakemake(experiment).stderr
