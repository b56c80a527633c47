"""The built-in rewards against values computed by hand."""

import re

import pytest

from node.built_in_rewards import BUILT_IN, cosine, emojis, repetition, soft_overlong
from node.rewards import reward_functions
from tests.source import ROOT
from trainers.reward_settings import Reward


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_has_a_row_with_its_options_and_a_meaning(name):
    (row,) = re.findall(rf"^\| `{name}` \|.*", (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8"), re.M)
    assert all(f"`{option}`" in row for option in BUILT_IN[name].options)
    key = next(line for line in (ROOT / "docs" / "configuration.md").read_text().splitlines() if "DAPO's" in line)
    assert f"`{name}`: " in key, "its meaning in the docstring of Reward.name, then make docs"
    assert Reward(name=name).name == name


def test_cosine_is_half_a_cosine_and_clamped():
    # 60° of 180° is a third of the way: cos(π/3) = 0.5, so a quarter of the height is gone.
    assert [cosine(length, True, 90) for length in (0, 30, 45, 90, 400)] == pytest.approx(
        [1.0, 0.875, 0.75, 0.5, 0.5], abs=1e-12
    )
    assert [cosine(length, False, 90) for length in (0, 30, 45, 90, 400)] == pytest.approx(
        [-0.5, -0.375, -0.25, 0.0, 0.0], abs=1e-12
    )
    assert cosine(10, True, 10, correct_short=2, correct_long=-1) == pytest.approx(-1)


def test_repetition_counts_tokens():
    assert repetition([1, 2, 3, 4, 5]) == 0.0
    assert repetition([7] * 12) == pytest.approx(1 / 10 - 1)  # ten n-grams, all alike
    assert repetition([1, 2, 3, 1, 2, 3]) == pytest.approx(3 / 4 - 1)  # 123 231 312 123
    assert repetition([1, 2, 1, 2], ngram=2) == pytest.approx(2 / 3 - 1)
    assert repetition([1, 2]) == repetition([]) == 0.0


def test_soft_overlong_is_dapos_equation_13():
    lengths = (0, 15_999, 16_384, 18_432, 20_480, 30_000)
    values = [soft_overlong(length, 20_480, 4_096) for length in lengths]
    assert values == [0.0, 0.0, 0.0, -0.5, -1.0, -1.0]
    assert soft_overlong(18_432, 20_480) == -0.5  # the cache is a fifth


def test_emojis_are_counted_as_displayed():
    assert emojis("none of them: 123 #1 © ✓ → 富士山") == 0
    assert emojis("one 😀") == 1
    assert emojis("a family 👨‍👩‍👧‍👦 and a hand 👍🏽") == 2
    assert emojis("flags 🇯🇵🇫🇷, a key 1️⃣, a heart ❤️") == 4
    assert emojis("😀" * 9) == 4
    assert emojis("😀" * 9, most=6) == 6


def test_the_end_token_is_not_part_of_a_response():
    """verl scores a response without it: TRL's ids have it, and come to the same."""
    (trl,) = reward_functions([{"name": "soft_overlong", "options": {"cache_length": 4.0}}], 8)
    trl.end_ids = frozenset({99})
    (verl,) = reward_functions([{"name": "soft_overlong", "options": {"cache_length": 4.0}}], 8)
    with_end = [[1] * 5 + [99], [1] * 7 + [99], [1] * 8]
    assert trl(completions=["x"] * 3, completion_ids=with_end) == [-0.25, -0.75, -1.0]
    assert verl(completions=["x"] * 3, completion_ids=[ids[: len(ids) - (99 in ids)] for ids in with_end]) == [
        *(-0.25, -0.75, -1.0)
    ]
    assert trl._ended(with_end[1]) and not trl._ended(with_end[2])
