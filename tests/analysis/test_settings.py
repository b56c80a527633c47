"""Settings by dotted key, as they were written and as they were held."""

import pytest

from common.dotted import lookup, overrides_by_key
from trainers.reward_settings import without_code


def test_overrides_by_key() -> None:
    given = ["trainer.use_v1=False", "+a.b='x y'", "++a.b=2", "~data.seed", "~data.other=3", "reward.path=/p=q"]
    taken = {"~data.seed": "", "~data.other": "3"}
    assert overrides_by_key({"overrides": given}) == {
        "trainer.use_v1": "False",
        "a.b": "2",
        "reward.path": "/p=q",
        **taken,
    }


@pytest.mark.parametrize("held", [{"trainer": {"nnodes": 2}}, {"trainer.nnodes": 2}])
def test_a_setting_is_found_flat_or_nested(held: object) -> None:
    assert lookup(held, "trainer.nnodes") == 2
    assert lookup(held, "trainer.gpus") is None and lookup(None, "trainer.nnodes") is None


def test_a_users_reward_shows_its_hash_and_not_its_text() -> None:
    own = {"source": "mine.py", "function": "f", "sha256": "ab", "code": "def f(completions): ..."}
    shown = without_code({"steps": 2, "rewards": [{"name": "format"}, own]})
    assert shown == {
        "steps": 2,
        "rewards": [{"name": "format"}, {"source": "mine.py", "function": "f", "sha256": "ab"}],
    }
    assert without_code({"steps": 2}) == {"steps": 2}
