"""The trees of timers that trainers declare, and what a run's timers must fit."""

import pytest

from common.errors import UserError
from trainers.registry import declared_trees, mode_of, tree_for
from trainers.timers.exclusive import overruns, own_rounding_s
from trainers.timers.flat import timer_places
from trainers.timers.tree import CATEGORIES


@pytest.mark.parametrize(
    ("parent_s", "children_s", "found"),
    [(1.0, 1.0009, False), (1.0, 1.0011, True), (100.0, 100.09, False), (100.0, 100.11, True), (5.0, 4.0, False)],
)
def test_children_exceed_parent_only_beyond_one_ms_or_a_thousandth(parent_s, children_s, found):
    assert bool(overruns({"step": parent_s, "step/a": children_s / 2, "step/b": children_s / 2})) is found


def test_declared_trees_are_whole():
    for tree in declared_trees():
        paths = [p.path for p in tree.phases]
        assert len(set(paths)) == len(paths)
        for phase in tree.phases[1:]:
            above = phase.path.rpartition("/")[0]
            assert above in paths[: paths.index(phase.path)] or (not above and tree.flat), phase.path
            assert phase.label and phase.description and phase.category in CATEGORIES


@pytest.mark.parametrize(
    ("version", "engine"), [("1.99.0", "vllm"), ("1.1", "vllm"), ("1.160.0", "vllm"), ("1.16.0", "lmdeploy")]
)
def test_unknown_version_or_engine_says_how_to_declare(version, engine):
    with pytest.raises(
        UserError, match=r"no timers are declared for trl.*trl 1\.\d+ .*with transformers/vllm.*--release"
    ):
        tree_for("trl", version, engine)


@pytest.mark.parametrize("version", ["0.6.0", "v0.6.0", "V0.6.0", "0.6.0+cu124", "v0.6.0.post1+cu124", "0.6.0.dev1"])
def test_a_version_may_be_a_tag_or_name_its_build(version):
    assert tree_for("verl", version, "vllm").series == "0.6"


@pytest.mark.parametrize(
    ("version", "overrides", "resolved", "mode"),
    [
        ("v0.4.1", ["trainer.use_v1=false"], {}, ""),
        ("0.9.1", ["trainer.use_v1=True", "trainer.use_v1=False"], {}, "legacy"),
        ("0.9.1", [], {"trainer": {"use_v1": False}}, "legacy"),
        ("0.9.1", [], {"trainer.use_v1": False}, "legacy"),
    ],
)
def test_a_runs_loop_is_what_its_settings_say(version, overrides, resolved, mode):
    spec, done = {"trainer_args": {"overrides": overrides}}, {"resolved": {"trainer": resolved}}
    assert mode_of("verl", version, spec, done) == mode


def test_a_whole_sum_carries_all_its_roundings():
    phases = {"step": 2.0, "step/gen": 1.5, "step/gen/reshard": 0.5, "step/ref": 0.25}
    own = own_rounding_s(phases, dict.fromkeys(phases, 0.005))
    assert own == {"step": 0.015, "step/gen": 0.01, "step/gen/reshard": 0.005, "step/ref": 0.005}


def test_rounding_may_not_decide_where_a_timer_lies():
    steps = [{"timing_s/step": 10.0, "timing_s/gen": 9.9, "timing_s/testing": 0.3}] * 4
    printed = [dict.fromkeys(step, 0.1) for step in steps]
    places, (said,) = timer_places(steps, tree_for("verl", "0.4.1", "vllm"), "r", printed)
    assert places == {"testing": "step/testing"} and "the numbers do not show" in said.text
