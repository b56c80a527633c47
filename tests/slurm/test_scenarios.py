"""What befalls a run on a real Slurm: whatever dies, lies or is cancelled, one job trains it, and no step is lost.

The trainer is a stand-in (tests/job/stand_in_trainer.py); Slurm, submitit, the job and the heads are real.
"""

from pathlib import Path

import pytest

from .play import play, scenarios


@pytest.mark.parametrize("scenario", [*scenarios(Path(__file__).with_name("scenarios.toml"))])
def test_a_scenario(run, make_cluster, tmp_path, faults, scenario):
    own = {"on": make_cluster(**scenario["cluster"])} if "cluster" in scenario else {}
    play(scenario, run, tmp_path, faults, **own)
