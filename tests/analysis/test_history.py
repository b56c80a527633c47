"""A history of experiments: marks are rare without a change and found with one, and what cannot be read is named."""

import json
from typing import get_type_hints

import make_history
import numpy as np
import pytest

from analysis.speed_history import FALSE_MARKS, level_begins
from common.json_types import fits
from common.verdicts import HistoryFile, PointInHistory, SeriesInHistory
from tests.simulated.nights import NOISE
from workflow.cli import main
from workflow.commands.draw_history import SLOWER


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return make_history.finished(tmp_path_factory.mktemp("history") / "quick")


@pytest.mark.parametrize("noise", ["normal", "1 night in 20 is 8 SD slower"])
def test_hardly_any_series_without_a_change_is_marked(noise):
    random, series = np.random.default_rng(3), 60
    marked = sum(len(level_begins(0.02 * NOISE[noise](random, 50))) > 1 for _ in range(series))
    assert marked <= 2 * FALSE_MARKS * series


def test_a_change_is_marked_once_and_at_its_place():
    random, series = np.random.default_rng(4), 40
    found, places = 0, []
    for _ in range(series):
        values = 0.02 * random.normal(size=27)
        values[20:] += 4 * 0.02
        begins = level_begins(values)
        assert len(begins) <= 2
        found += len(begins) == 2
        places += begins[1:]
    assert found >= 0.8 * series and np.mean(np.abs(np.array(places) - 20) <= 1) >= 0.9


def test_a_slower_release_fails_for_its_arm_only(template, tmp_path, capsys):
    make_history.nightly(tmp_path / "nights", template, [1.0] * 8 + [1.2] * 5, at=8)
    command = ["history", str(tmp_path / "nights"), "--to", str(tmp_path / "out"), "--fail-if-slower", "15%"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--arm", "vllm"])
    assert ended.value.code == SLOWER
    assert "slower (95% CI" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "history.json").read_text())
    for kind, held in (
        (HistoryFile, found),
        (SeriesInHistory, found["series"][0]),
        (PointInHistory, found["series"][0]["points"][0]),
    ):
        hints = get_type_hints(kind)
        assert held.keys() == hints.keys() and all(fits(value, hints[key]) for key, value in held.items())
    (speed,) = [one for one in found["series"] if one["quantity"] == "step_s"]
    (change,) = speed["changes"]
    assert change["at"] == 8 and change["low"] < 1.2 < change["high"]
    assert change["cause"] == "vllm 0.31.0 → vllm 0.32.0"
    assert speed["slowdown"] == change["slower"] == pytest.approx(speed["levels"][1] / speed["levels"][0])
    (ratio,) = [one for one in found["series"] if one["quantity"] == "per_step"]
    assert ratio["changes"][0]["slower"] == pytest.approx(1.2, rel=0.05)
    page = (tmp_path / "out" / "history.html").read_text()
    assert page.count("<svg ") == len(found["series"]) >= 3
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "vllm 0.32.0" in page and "<script" not in page
    assert main([*command, "--arm", "transformers"]) == 0


def test_flags_are_checked(template, tmp_path, capsys):
    assert main(["history", str(template), "--to", str(tmp_path), "--arm", "vlm"]) == 1
    assert "unknown arm 'vlm' (did you mean vllm?)" in capsys.readouterr().err
    assert main(["history", str(tmp_path / "none")]) == 1
    assert "is not there" in capsys.readouterr().err


def test_what_cannot_be_read_is_named_and_the_rest_answered(template, tmp_path, capsys):
    folder = tmp_path / "all"
    make_history.nightly(folder, template, [1.0] * 2)
    report, plan = (json.loads((template / name).read_text()) for name in ("report.json", "plan.json"))
    run = report["runs"][0]["run_id"]
    bad = {
        "cut": ("{", plan, "is not JSON"),
        "newer": (report | {"format": 2}, plan, "has format 2"),
        "odd": (report | {"runs": [{"run_id": run}]}, plan, "is damaged"),
        "unfinished": (None, plan, "no report.json"),
        "older": (
            {key: value for key, value in report.items() if key not in ("runs", "format")},
            plan,
            "has format None",
        ),
        "zcopy": (json.loads((folder / "night-0000" / "report.json").read_text()), plan, "has the same runs as"),
    }
    for name, (of_report, of_plan, _) in bad.items():
        (folder / name).mkdir()
        (folder / name / "plan.json").write_text(json.dumps(of_plan))
        if of_report is not None:
            text = of_report if isinstance(of_report, str) else json.dumps(of_report)
            (folder / name / "report.json").write_text(text)
    assert main(["history", str(folder), "--to", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "in 2 experiments" in said.out
    for name, (_, _, why) in bad.items():
        assert any(f"{name} is skipped" in line and why in line for line in said.err.splitlines()), (name, said.err)


def test_experiments_that_share_no_arm_are_answered_each(template, tmp_path, capsys):
    make_history.nightly(tmp_path, template, [1.0] * 2)
    file = tmp_path / "night-0001" / "report.json"
    file.write_text(file.read_text().replace('"vllm"', '"other"').replace('"transformers"', '"third"'))
    (tmp_path / "night-0001" / "plan.json").unlink()
    assert main(["history", str(tmp_path), "--to", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "other: seconds per step" in said.out and "vllm: seconds per step" in said.out
    assert "no arm is in two experiments" in said.err
    found = json.loads((tmp_path / "out" / "history.json").read_text())
    assert all(len(one["points"]) == 1 for one in found["series"])
