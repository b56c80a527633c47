"""What published means hold: the numbers of docs/gallery/claims, worked out by hand from what their sources print."""

import json
import random

import pytest

from analysis.published_means import AGAINST, HOLDS, LIKELY, OPEN, OTHER, UNEQUAL, published
from common.errors import UserError
from scripts import gallery
from workflow.cli import main

CLAIMS = gallery.FOLDER / "claims"
# Of a claim's rows: the ratio as printed, that at equal tokens and GPUs (None: tokens are not printed), the verdict.
BY_HAND = {
    "alpamayo-graphs": [(1.5632, 1.3577, UNEQUAL), (1.0059, 1.0105, OPEN)],
    "areal-prox": [(207 / 163, None, OPEN)],
    "areal-v03": [(2.770, None, OPEN), (2.272, None, OPEN)],
    "async-grpo": [(1.423, None, OPEN), (1.304, None, OTHER)],
    "compose-rl": [(1.207, None, OPEN)],
    "isoexec": [(0.798, None, OPEN)],
    "marin-async": [(1.398, 1.343, HOLDS), (1.722, 1.703, LIKELY)],
    "marin-branch": [(2.897, None, OPEN), (1.462, None, OPEN)],
    "marin-ngram": [(0.992, 0.975, OPEN), (1.005, 0.886, UNEQUAL)],
    "miles-nvfp4": [(3.099, None, HOLDS), (1.315, None, HOLDS)],
    "nemo-rl-async": [
        (1.732, 1.764, HOLDS),
        (2.090, 1.059, UNEQUAL),
        (1.263, 1.262, HOLDS),
        (0.734, 0.734, OTHER),
        (1.029, 0.514, OTHER),
    ],
    "nemo-rl-cuda-graph": [(1.647, None, OPEN), (1.455, None, OTHER)],
    "nemo-rl-fp8": [(0.960, 0.990, AGAINST), (1.083, 1.100, OPEN), (1.223, 1.228, LIKELY)],
    "nemo-rl-in-flight": [(2.857, 2.556, UNEQUAL)],
    "nemo-rl-refit": [(1.536, None, HOLDS), (1.421, None, HOLDS), (0.422, None, LIKELY)],
    "nemo-rl-releases": [(1.091, 1.091, OPEN), (1.031, 1.034, OPEN), (0.879, 0.881, AGAINST)],
    "rl-kernel": [(1.000, None, OPEN)],
    "skyrl-megatron": [(0.805, 0.805, OTHER), (0.957, 0.940, OPEN)],
    "skyrl-mtp": [(2.035, None, HOLDS), (1.624, None, OPEN)],
    "slime-mtp": [(1.368, None, OPEN), (1.139, None, OPEN)],
    "slime-pipeline": [(1.778, None, HOLDS), (1.147, None, OPEN)],
    "treepo": [(1.288, None, OPEN), (1.088, None, OPEN)],
    "trl-async-lora": [(3.906, None, UNEQUAL)],
    "verl-delta-sync": [(1.307, None, HOLDS), (4.535, None, HOLDS), (19.47, None, LIKELY), (1.802, None, LIKELY)],
    "verl-dynamo": [(1.079, None, OPEN)],
    "verl-engines": [(1.943, None, OTHER), (1.051, None, OPEN)],
    "verl-fully-async": [
        (2.665, None, OPEN),
        (1.695, None, OPEN),
        (3.709, None, OPEN),
        (2.680, None, OPEN),
        (2.674, None, OPEN),
        (1.025, None, UNEQUAL),
    ],
    "verl-int8": [(1.168, None, OPEN)],
    "verl-omni": [(1.167, None, UNEQUAL)],
    "verl-one-step-off": [(1.440, None, AGAINST), (1.235, None, AGAINST)],
    "verl-prefix-grouper": [(1.136, None, OPEN), (1.268, None, OPEN)],
    "verl-reward-queue": [(1.536, None, OPEN)],
    "verl-v1-modes": [(1.548, 1.564, HOLDS), (1.616, 1.562, HOLDS), (1.044, 0.998, UNEQUAL)],
    "verl-v1-switch": [(1.115, 1.127, OPEN)],
    "verl-validation": [(2.143, None, HOLDS), (1.017, None, OPEN)],
}


def test_every_claim_was_worked_out_by_hand():
    assert sorted(BY_HAND) == sorted(path.stem for path in CLAIMS.glob("*.csv"))


@pytest.mark.parametrize("name", BY_HAND)
def test_the_tool_finds_what_the_hand_found(name):
    held = published(CLAIMS / f"{name}.csv")
    assert [one.verdict for one in held] == [verdict for _, _, verdict in BY_HAND[name]]
    for one, (speed, equal, _) in zip(held, BY_HAND[name], strict=True):
        assert one.speed == pytest.approx(speed, rel=2e-3)
        assert one.equal == pytest.approx(equal, rel=2e-3) if equal else one.equal != one.equal


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
