"""`snakemake --cores 8 --configfile my.yaml`, without a profile: the runs train one after another."""

import itertools
import json

from .quick_site import QuickSite


def test_without_a_profile_no_two_runs_train_at_the_same_time(tmp_path):
    site = QuickSite(tmp_path, profile="none")
    site.config["seeds"] = [0, 1]
    site.config["shared"] = {"trl": {"env": {"STAND_IN_STEP_S": "0.3"}}}
    done = site.snakemake("--cores", "8", "--until", "train")
    assert done.returncode == 0, done.stderr
    assert "waits for this machine: process " in done.stderr
    attempts = [
        [json.loads((folder / name).read_text()) for name in ("attempt.json", "exit.json")]
        for folder in (site.results / "runs").glob("*/attempts/1")
    ]
    spans = sorted((begun["started"], ended["time"]) for begun, ended in attempts)
    assert len(spans) == 4
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
