"""Two minutes of a storm: every run that was not cancelled finishes exactly once, and nothing is left.

`python -m bench storm` is its long form.
"""

import pytest

from .storm import Storm

pytestmark = pytest.mark.promise("twelve-runs-survive-two")

SEED = 20261122


def test_every_run_outlives_a_storm_and_finishes_once(make_cluster, faults, tmp_path):
    storm = Storm(make_cluster(), tmp_path, faults, SEED)
    try:
        storm.rage(120)
        storm.settle()
    finally:
        storm.end()
    print(dict(storm.counts))
    assert not storm.wrong, "\n".join(storm.wrong)
    assert storm.is_storm(), storm.counts
