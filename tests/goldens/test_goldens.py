"""What must not change while the code is moved: `tests/goldens/__init__.py` says how a value is changed on purpose."""

import difflib
import json

import pytest

from .made import DATA, MADE, finished, rolloutbench, snakemake, unpack_recorded
from .write import VALUES, text_of

SHOW = "Is it meant? Say it in the commit, and run `python -m tests.goldens.write --only"


def stored(name):
    return json.loads((VALUES / f"{name}.json").read_text(encoding="utf-8"))


# Every format of a log is among those that are made.
FULL = pytest.mark.full("whole workflows")


@pytest.mark.parametrize("name", ["preflights", "formats", pytest.param("recorded", marks=FULL)])
def test_every_value_is_as_it_was(name, tmp_path):
    before, now = (text_of(one).splitlines() for one in (stored(name), MADE[name](tmp_path)))
    lines = [line for line in difflib.unified_diff(before, now, n=0) if line[:3] not in ("---", "+++")]
    assert not lines, "\n".join([f"{name} has changed:", *lines[:60], f"{SHOW} {name}`"])


def test_the_fingerprint_of_every_run_is_as_it_was(tmp_path):
    """A finished run is found by it: another one means GPU-days trained again."""
    before, now = stored("fingerprints"), MADE["fingerprints"](tmp_path)
    lost = [
        f"{file} {run_id}: {fingerprint} is now {now.get(file, {}).get(run_id)}"
        for file, runs in before.items()
        for run_id, fingerprint in runs.items()
        if now.get(file, {}).get(run_id) != fingerprint
    ]
    assert before and not lost, "\n".join(["runs would be trained again:", *lost])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder in which training has finished, and nothing was collected yet; its configuration."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, unpack_recorded(folder)


def run_ids():
    return sorted(folder.name for folder in (DATA / "recorded" / "experiment" / "runs").iterdir())


def test_a_finished_run_is_found_finished(site):
    folder, config = site
    said = finished(snakemake(folder, config, "--dry-run")).stdout
    assert said.count("rule collect:") == 4 and "rule train:" not in said and "rule stack:" not in said, said
    told = finished(rolloutbench(folder, "status", str(config))).stdout
    rows = [line.split()[:2] for line in told.splitlines() if line.startswith(tuple(run_ids()))]
    assert sorted(rows) == [[run_id, "finished"] for run_id in run_ids()], told


def test_a_finished_attempt_is_not_trained_again(site):
    """Without the run's own done.json the launcher has to find the attempt that finished it, by its fingerprint."""
    folder, config = site
    target = "results/recorded/runs/vllm-s0/done.json"
    before = json.loads((folder / target).read_text(encoding="utf-8"))
    (folder / target).unlink()
    done = finished(snakemake(folder, config, "--until", "train"))
    assert "vllm-s0: already finished (attempt 1)" in done.stderr, done.stderr
    assert json.loads((folder / target).read_text(encoding="utf-8")) == before
    attempts = sorted(file.name for file in (folder / target).parent.glob("attempts/*"))
    assert attempts == ["1"]
