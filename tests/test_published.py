"""What published means hold: the numbers of docs/gallery/claims, worked out by hand from what their sources print."""

import csv
import json
import random
from itertools import groupby
from pathlib import Path

import pytest

from analysis.published_means import UNEQUAL, published
from common.errors import UserError
from scripts import gallery
from workflow.cli import main

CLAIMS = gallery.FOLDER / "claims"
# A claim's rows: the ratio as printed, that at equal tokens and GPUs (empty: no tokens are printed), the verdict.
with Path(__file__).with_name("published.csv").open(encoding="utf-8") as text:
    BY_HAND = {name: [*rows] for name, rows in groupby(csv.DictReader(text), lambda row: row["claim"])}


def test_every_claim_was_worked_out_by_hand():
    assert sorted(BY_HAND) == sorted(path.stem for path in CLAIMS.glob("*.csv"))


@pytest.mark.parametrize("name", BY_HAND)
def test_the_tool_finds_what_the_hand_found(name):
    held = published(CLAIMS / f"{name}.csv")
    for one, right in zip(held, BY_HAND[name], strict=True):
        assert one.verdict == right["verdict"]
        assert one.speed == pytest.approx(float(right["speed"]), rel=2e-3)
        equal = float(right["at_equal_tokens"] or "nan")
        assert one.equal == pytest.approx(equal, rel=2e-3, nan_ok=True)


def test_the_page_is_what_the_tables_hold():
    page = (gallery.FOLDER / "claims.md").read_text(encoding="utf-8")
    assert page == gallery.claims_page(), "run `python scripts/gallery.py`"


def table(folder, *lines):
    path = folder / "claim.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_swap_of_the_arms_turns_the_ratio_over(tmp_path):
    draw = random.Random(5)
    for _ in range(50):
        rows = [f"{arm},8,256,{draw.uniform(500, 600):.1f},{draw.uniform(50, 60):.2f}" for arm in "ab"]
        head = "arm,gpus,responses,response_length,step_time"
        (one,), (other,) = (published(table(tmp_path, head, *order)) for order in (rows, rows[::-1]))
        assert one.speed * other.speed == pytest.approx(1) and one.equal * other.equal == pytest.approx(1)
        assert one.verdict == other.verdict


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["engine,step_time", "a,1", "b,2"], "has a column `arm`"),
        (["arm,step_tim", "a,1", "b,2"], "did you mean step_time"),
        (["arm,step_time", "a,1,5", "b,2"], "more cells than columns"),
        (["arm,step_time", "a,-1", "b,2"], "must be a number above 0 (got '-1')"),
        (["arm,step_time", "a,nan", "b,2"], "must be a number above 0 (got 'nan')"),
        (["arm,step_time", "a,1"], "a baseline's row and an arm's"),
        (["arm,gpus", "a,1", "b,1"], "neither a time"),
        (["arm,step_time,tokens_per_second", "a,1,", "b,,3"], "no time and no tokens a second of one column"),
        (["arm,step_time,said", "a,1,", "b,2,twice"], "said: 'twice' must be such as 1.5x"),
    ],
)
def test_a_mistake_in_a_table_is_named(tmp_path, lines, said):
    with pytest.raises(UserError) as error:
        published(table(tmp_path, *lines))
    assert said in str(error.value)


def test_the_command_prints_it_and_writes_nothing(tmp_path, monkeypatch, capsys):
    path = table(tmp_path, "arm,gpus,step_time,said", "sync,4,420,", "async,5,360,-14% time")
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--published", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "async against sync: not equal work: 1.17x as printed. Said: -14% time."
    )
    assert main(["compare", "--published", "--json", str(path)]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["verdict"] == UNEQUAL and told["at_equal_tokens"] is None
    assert list(tmp_path.iterdir()) == [path]
