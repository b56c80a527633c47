"""Do verl's own classes take our data and our rewards?"""

import json
import math
from pathlib import Path

import pytest

from node.seeds import engine_seed

from .environments import VERSIONS

pytestmark = pytest.mark.full("verl's own classes of both releases")


@pytest.mark.parametrize("version", VERSIONS)
def test_data_and_rewards_through_verls_own_classes(version, warm_verl, tmp_path):
    # No PYTHONPATH for what is loaded by path but the one that a job's processes have.
    done = warm_verl(version).run(Path(__file__).with_name("score_rows.py"), version, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())

    # Data: every row, with its prompt as the model's own template writes it.
    assert told["rows"] == 16
    assert told["prompt"] == told["expected_prompt"]
    assert told["ground_truth"] == told["expected_truth"]
    assert told["dropped"] == 0  # verl filters prompts that are too long again, and finds none

    # Rewards: a right one, a wrong one, one that was cut, one without thought; the longest response has 64 tokens.
    (right, wrong, cut, bare) = told["scores"]
    assert told["cut_tokens"] == 64
    assert [round(score["accuracy"], 6) for score in told["scores"]] == [1.0, 0.0, 0.0, 1.0]
    for score, phi4 in ((right, 8 / 13), (cut, -0.5 * 8 / 13), (bare, -8 / 13)):
        assert score["phi4"] == pytest.approx(phi4)
    way = min(1.0, told["wrong_tokens"] / (64 * 3702 / 31744))
    assert wrong["phi4"] == pytest.approx(8 / 13 * (-0.5 - 0.25 * (1 + math.cos(math.pi * way))))
    for score, scored in zip(told["scores"], told["tensor"], strict=True):
        own = {"asked": 0.001, "compute_score": 0.01, "told": 0.01, "Length": 0.01}
        weights = {name: 1.0 for name in told["trl"]} | {"phi4": 0.5} | own
        known = {name: weight for name, weight in weights.items() if not math.isnan(score[name])}
        assert score["score"] == pytest.approx(sum(weight * score[name] for name, weight in known.items()))
        # verl puts it on the response's last token, and nothing elsewhere.
        assert scored["sum"] == pytest.approx(score["score"], abs=1e-6)
        assert scored["at_last"] == pytest.approx(score["score"], abs=1e-6)
    # The same responses have the same values under TRL; a user's function that fails has none under both.
    for name, values in told["trl"].items():
        assert [None if math.isnan(score[name]) else score[name] for score in told["scores"]] == pytest.approx(values)
    asked = [
        question.endswith("?") + 10 * at + 100 * length + 10000 * (length == 64)
        for at, (question, length) in enumerate(zip(told["questions"], told["lengths"], strict=False))
    ]
    assert told["trl"]["asked"] == [*asked[:3], None]
    assert [score["asked_failed"] for score in told["scores"]] == [0, 0, 0, 1]
    assert told["trl"]["compute_score"] == [1.0, 0.0, 1.0, None]
    assert [score["compute_score_failed"] for score in told["scores"]] == [0, 0, 0, 1]
    assert [score[f"{name}_failed"] for score in told["scores"] for name in ("told", "Length")] == [0] * 8
    assert "ValueError: bare (mine.py, line 4)" in told["failures"][0]
    # 0.4.1 would give it to every request; verl's own default is 42.
    assert told["seeds"] == ([False, False] if version == "0.4.1" else [engine_seed(42, 0), engine_seed(42, 20)])
    assert told["printed"] == []  # no completion in the log


@pytest.mark.parametrize("version", VERSIONS)
def test_a_resumed_run_has_the_data_order_of_an_uninterrupted_one(version, warm_verl, tmp_path):
    done = warm_verl(version).run(Path(__file__).with_name("order_of_data.py"), version, tmp_path)
    assert done.returncode == 0, done.stderr
    for told in json.loads((tmp_path / "order.json").read_text()).values():
        whole = told["whole"]
        assert whole[:5] != whole[5:10] != whole[10:15]  # each pass is shuffled anew
        assert {step: rows for step, rows in told["resumed"].items() if rows != whole} == {}
