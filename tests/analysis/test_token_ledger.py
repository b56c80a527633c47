"""What became of what an asynchronous loop generated, and what the GPUs of unlike loops did."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from workflow.cli import main

from ..simulated.loops import Loop, fully_async

pytestmark = pytest.mark.usefixtures("no_figures")
LOOPS = {
    "evicts": {"engines": 30, "batch": 16, "train_s": 9.0, "queue": 40, "too_old": 2},
    "starves": {"engines": 3, "batch": 16, "train_s": 9.0, "queue": 200},
    "blocks": {"engines": 30, "batch": 16, "train_s": 9.0, "queue": 20, "blocks": True},
}
ACCOUNTS = ["generated", "trained", "stale", "dropped", "in_flight"]


def rows_of(name, seed=0, steps=30):
    return Loop(**LOOPS[name], seed=seed).steps(steps)


def report(folder, logs, *more):
    """The verdict and the tables of a comparison of these logs by name."""
    words = []
    for arm, texts in logs.items():
        for place, text in enumerate(texts):
            (folder / f"{arm}{place}.log").write_text(text)
        words.append(f"{arm}=" + ",".join(str(folder / f"{arm}{place}.log") for place in range(len(texts))))
    assert main(["compare", *words, "--report", str(folder / "out"), *more]) == 0
    (verdict,) = json.loads((folder / "out" / "verdict.json").read_text())["arms"]
    return verdict, folder / "out" / "tables"


@pytest.mark.parametrize("name", LOOPS)
def test_the_ledger_of_a_simulated_loop_closes(tmp_path, name):
    """Each account as the simulation counts it, from the first logged step to the last."""
    rows = [rows_of(name, seed) for seed in range(2)]
    _, tables = report(tmp_path, {"a": [fully_async(rows[0], (8, 4))], "b": [fully_async(rows[1], (8, 4))]})
    found = pd.read_parquet(tables / "loops.parquet").set_index("arm")
    for arm, mine in zip("ab", rows, strict=True):
        first, last = mine[0], mine[-1]
        known = {account: last[account] - first[account] for account in ACCOUNTS}
        # verl counts what its queue drops among the stale.
        known["stale"] += known.pop("dropped")
        assert found.loc[arm, list(known)].to_dict() == pytest.approx(known)
        assert found.loc[arm, "unaccounted"] == pytest.approx(0) and found.loc[arm, "unit"] == "groups"
        counted = mine[1:]
        assert found.loc[arm, "staleness"] == pytest.approx(np.mean([row["age"] for row in counted]), abs=1e-3)
        assert found.loc[arm, "engine_wait_share"] == pytest.approx(
            np.mean([row["engine_idle"] for row in counted]), abs=1e-3
        )
        assert found.loc[arm, "no_engine_share"] == found.loc[arm, "engine_wait_share"]
        assert found.loc[arm, "partial_share"] == 0.25
        waited = np.mean([row["waited"] / row["seconds"] for row in counted])
        assert found.loc[arm, "trainer_wait_share"] == pytest.approx(waited, abs=1e-3)


def test_a_restart_begins_the_counts_anew(tmp_path):
    """The counts of the second process begin at 0; the ledger goes on."""
    rows = rows_of("starves")
    first, second = fully_async(rows[:15], (8, 4)), fully_async(rows, (8, 4))
    again = []
    for line in second.splitlines()[2 + 15 :]:
        generated = int(float(re.search(r"total_generated_samples:([\d.]+)", line)[1])) - rows[14]["generated"]
        again.append(re.sub(r"total_generated_samples:[\d.]+", f"total_generated_samples:{generated}.0", line))
    _, tables = report(
        tmp_path, {"a": [first + "\n".join(again) + "\n"], "b": [fully_async(rows_of("starves", 1), (8, 4))]}
    )
    found = pd.read_parquet(tables / "loops.parquet").set_index("arm").loc["a"]
    assert found["generated"] == rows[-1]["generated"] - rows[0]["generated"]


def test_hours_to_a_reward_are_unknown_where_a_step_has_no_time(tmp_path):
    rise = np.linspace(0.2, 0.8, 30)
    first, second = (fully_async(rows_of("blocks", seed), (8, 4), rise) for seed in range(2))
    lacking = re.sub(r"(step:20 .*timing_s/step:)[\d.]+", r"\1nan", second)
    verdict, tables = report(tmp_path, {"a": [first], "b": [lacking]})
    (line,) = [one for one in verdict["per_gpu"] if "GPU-hours" in one]
    assert line.endswith("are not known: 1 step before it is in no log of b, or has no time there.")
    assert np.isnan(pd.read_parquet(tables / "per_gpu.parquet")["arm_hours"][0])


def test_rewards_that_do_not_rise_have_no_hours(tmp_path):
    logs = {"a": [fully_async(rows_of("blocks"), (8, 4))], "b": [fully_async(rows_of("blocks", 1), (8, 8))]}
    verdict, _ = report(tmp_path, logs)
    assert not any("GPU-hours" in one for one in verdict["per_gpu"])
