"""Many runs in one call: a table in each run's own folder, and a run that fails stops no other."""

import make_results
import pytest

from analysis.collect import collect_run, main
from analysis.steps import read_steps


@pytest.fixture
def runs(tmp_path):
    phases = make_results.phases_from_leaves(make_results.leaves(1 / 3, 0.1), slack_s=0.01)
    rows = [make_results.metrics_row(step, phases) for step in (1, 2, 3)]
    folders = [make_results.write_run(tmp_path / "r", f"vllm-s{n}", "vllm", n, [rows]) for n in range(3)]
    (folders[1] / "done.json").unlink()
    return folders


def test_each_in_its_own_folder(runs, capfd):
    assert main([*map(str, runs), "--jobs", "2"]) == 1
    said = capfd.readouterr()
    assert "done.json is not there" in said.err and len(said.err.splitlines()) == 1
    assert said.out.splitlines() == [f"{runs[n]}/steps.parquet: {collect_run(runs[n]).num_rows} rows" for n in (0, 2)]
    assert not (runs[1] / "steps.parquet").exists()
    for n in (0, 2):
        table, metadata = read_steps(runs[n] / "steps.parquet")
        assert set(table["run_id"].to_pylist()) == {f"vllm-s{n}"} and metadata["timers"] == "trl 1.16"


def test_one_file_for_several_runs_is_refused(runs, tmp_path, capfd):
    with pytest.raises(SystemExit):
        main([*map(str, runs), "--out", str(tmp_path / "steps.parquet")])
    assert "--out is for one run" in capfd.readouterr().err
