"""`seeds: {until, most}` on a real Slurm: looks beside the head, the report in a job, pairs on the same node."""

import json

import pytest

from ..patience import run
from ..test_until import env, experiment, snakemake_command  # noqa: F401 (a fixture)
from .test_training import SlurmSite

pytestmark = pytest.mark.promise("seeds-until-most-goes")


def test_pairs_are_added_on_slurm_and_the_report_is_made_in_a_job(
    cluster,
    experiment,  # noqa: F811
):
    (experiment / "site").mkdir()
    site = SlurmSite(experiment / "site", cluster)
    told = env(experiment) | site.env | {"BENCH": str(experiment)}
    told["PATH"] = f"{experiment / 'bin'}:{site.env['PATH']}"
    done = run(snakemake_command(site.profile), 400, cwd=experiment, env=told)
    assert done.returncode == 0, done.stderr[-6000:]
    results = experiment / "results" / "run-ab"
    (arm,) = json.loads((results / "verdict.json").read_text())["arms"]
    assert (arm["verdict"], arm["runs"]) == ("+", [3, 3])
    for seed in range(3):
        files = [results / "runs" / f"{arm}-s{seed}" / "attempts" / "1" / "attempt.json" for arm in ("vllm", "sglang")]
        one, other = (json.loads(file.read_text())["nodes"] for file in files)
        assert one == other
    assert not (results / "runs" / "vllm-s3").exists()
