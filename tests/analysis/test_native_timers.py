"""The timers that trainers log by themselves, releases of verl between those that we run, and what rounding allows."""

import math
from dataclasses import replace

import pytest

from analysis.imports.step_checks import add_time_between, clock_verdicts
from analysis.steps import ChosenStep
from trainers.logs.record import STEPS_LOGGED, StepRecord
from trainers.registry import tree_for
from trainers.timers.exclusive import exclusive_s, own_rounding_s
from trainers.timers.flat import nest_timers, timer_places

PROFILED = "profiling/Time taken: GRPOTrainer."


def test_trls_profiling_points_nest_in_its_step_time():
    flat = {
        "train/step_time": 10.0,
        "train/reward": 0.5,
        "train/rewards/accuracy/mean": 0.5,
        PROFILED + "_prepare_inputs": 7.0,
        PROFILED + "sync_weights": 0.5,
        PROFILED + "vLLM.generate": 4.0,
        PROFILED + "_calculate_rewards": 0.25,
        PROFILED + "accuracy": 0.2,
        PROFILED + "_get_per_token_logps_and_entropies": 3.0,
        PROFILED + "compute_loss": 2.0,
        PROFILED + "something_new": 1.0,
    }
    tree = tree_for("trl", "1.16.0", "vllm", "native")
    found = nest_timers(flat, tree)
    own = exclusive_s(found.phases)
    inputs = "step/training_step/prepare_inputs"
    assert own["step"] == 1.0 and own[inputs] == 2.25 and own[f"{inputs}/generate"] == 4.0
    assert math.fsum(own.values()) == 10.0 and found.undeclared == ("something_new",)
    assert found.scalars["reward_function_s/accuracy"] == 0.2 and found.scalars["all_log_probs_s"] == 3.0
    assert tree.unit_not_summed("reward_function_s/accuracy") == "s" and tree.unit_not_summed("train/reward") is None
    assert found.names[PROFILED + "sync_weights"] == f"timing_s/{inputs}/sync_weights"


def test_swifts_calls_that_repeat_in_a_step_are_in_no_sum():
    flat = {
        "train/step_time": 10.0,
        PROFILED + "_prepare_inputs": 0.001,
        PROFILED + "_generate_and_score_completions": 6.0,
        PROFILED + "generate": 4.0,
        PROFILED + "_move_model_to_vllm": 0.5,
        PROFILED + "_score_completions": 0.5,
        PROFILED + "_compute_rewards_per_func": 0.25,
        PROFILED + "_prepare_batch_inputs": 0.75,
    }
    found = nest_timers(flat, tree_for("swift", "4.6.0", "vllm", "native"))
    own = exclusive_s(found.phases)
    assert own["step"] == 4.0 and own["step/rollout"] == 0.25 and not found.undeclared
    assert found.scalars == {"last_call_s/_prepare_inputs": 0.001, "last_call_s/_compute_rewards_per_func": 0.25}


@pytest.mark.parametrize(
    ("version", "testing", "saving", "weights"),
    [
        ("0.4.0", "step/testing", "step/save_checkpoint", None),
        ("0.5.0", "step/testing", "step/save_checkpoint", None),
        ("0.6.1", "testing", "save_checkpoint", None),
        ("0.7.0", "testing", "save_checkpoint", None),
        ("0.7.1", "testing", "step/save_checkpoint", "step/update_weights"),
        ("0.8.0", "testing", "step/save_checkpoint", "step/update_weights"),
    ],
)
def test_what_lies_inside_the_step_by_version(version, testing, saving, weights):
    tree = tree_for("verl", version, "sglang")
    flat = {f"timing_s/{name}": 1.0 for name in ("step", "gen", "testing", "save_checkpoint", "update_weights")}
    found = nest_timers(flat, tree)
    assert {testing, saving} <= set(found.phases)
    assert (weights in found.phases) if weights else (found.undeclared == ("update_weights",))


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0", "0.7.1", "0.8.0"])
def test_counts_among_the_timers_are_no_seconds(version):
    names = ("agent_loop/slowest/response_length", "agent_loop/num_preempted/max", "agent_loop/generate_sequences/mean")
    flat = {f"timing_s/{name}": 500.0 for name in (*names, "generation_timing/max", "generation_timing/topk_ratio")}
    tree = tree_for("verl", version, "vllm")
    found = nest_timers(flat | {"timing_s/step": 10.0, "timing_s/gen": 8.0}, tree)
    assert found.phases == {"step": 10.0, "step/gen": 8.0} and not found.undeclared
    assert tree.unit_not_summed(names[0]) == "tokens" and tree.unit_not_summed(names[1]) == "1"
    assert (
        tree.unit_not_summed("generation_timing/topk_ratio") == "1"
        and tree.unit_not_summed("generation_timing/max") == "s"
    )


def test_a_whole_sum_carries_all_its_roundings():
    phases = {"step": 2.0, "step/gen": 1.5, "step/gen/reshard": 0.5, "step/ref": 0.25}
    rounding = dict.fromkeys(phases, 0.005)
    own = own_rounding_s(phases, rounding)
    assert own == {"step": 0.015, "step/gen": 0.01, "step/gen/reshard": 0.005, "step/ref": 0.005}
    assert own_rounding_s(phases, {}) == dict.fromkeys(phases, 0.0)


def test_rounding_may_not_decide_where_a_timer_lies():
    tree = tree_for("verl", "0.4.1", "vllm")
    steps = [{"timing_s/step": 10.0, "timing_s/gen": 9.9, "timing_s/testing": 0.3}] * 4
    places, (said,) = timer_places(steps, tree, "r")
    assert places == {"testing": "testing"} and said.level == "warning"
    printed = [dict.fromkeys(step, 0.1) for step in steps]
    places, (said,) = timer_places(steps, tree, "r", printed)
    assert places == {"testing": "step/testing"} and "the numbers do not show" in said.text


def at(step, time, seconds=10.0, resumed=False, logged=None):
    scalars = {} if logged is None else {STEPS_LOGGED: logged}
    return ChosenStep(1, StepRecord(step, {"step": seconds}, scalars, {}, resumed, None, 1, time=time), resumed, False)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (at(2, 110.5), None),
        (at(2, 500.0), None),
        (at(2, 103.0), "step 2 took 10.000 s by its timers, but 3.000 s passed"),
        (at(2, 40.0), "but -60.000 s passed"),
        (at(3, 40.0), "from step 1 to 3 took 0.000 s by its timers, but -60.000 s passed"),
        # NTP set the clock back by a second, between steps of a tenth.
        (at(2, 99.1, 0.1), None),
        (at(6, 130.0, logged=5), "from step 1 to 6 took 50.000 s by its timers, but 30.000 s passed"),
        (at(2, 103.0, math.nan), None),
        (at(2, 103.0, resumed=True), None),
        (at(2, None), None),
    ],
)
def test_a_clock_that_jumped_is_told(second, said):
    found = clock_verdicts([at(1, 100.0), second], "r")
    assert [v.code for v in found] == (["clock-jump"] if said else [])
    assert said is None or said in found[0].text


def since_start(step, elapsed_s, seconds=10.0, resumed=False, logged=None):
    c = at(step, None, seconds, resumed, logged)
    return replace(c, record=replace(c.record, elapsed_s=elapsed_s))


def between(chosen):
    return [c.record.scalars.get("between_steps_s") for c in chosen]


def test_what_passes_between_two_steps_is_told_by_the_time_of_day_exactly():
    chosen = [at(1, 100.0), at(2, 110.5), at(3, 140.5), at(4, 149.0)]
    (told,) = add_time_between(chosen, "r")
    assert between(chosen) == [None, 0.5, 20.0, 0.0]
    assert (
        told.code == "time-in-no-step" and "39% of the time from its first to its last step (19 of 49 s)" in told.text
    )


def test_whole_seconds_since_the_start_give_each_step_the_mean():
    """Each alone would be off by up to a second."""
    chosen = [since_start(1, 11.0), since_start(2, 21.0), since_start(3, 32.0), since_start(4, 42.0)]
    assert add_time_between(chosen, "r") == []
    assert between(chosen) == [None, *[pytest.approx(1 / 3)] * 3]
    # Records that are means of five steps each.
    chosen = [since_start(5, 51.0, logged=5), since_start(10, 101.0, logged=5), since_start(15, 166.0, logged=5)]
    add_time_between(chosen, "r")
    assert between(chosen) == [None, 1.5, 1.5]


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (at(2, 200.0, resumed=True), []),
        (at(3, 200.0), []),
        (at(2, 200.0, math.nan), []),
        (at(2, 2000.0), ["stood-still"]),
    ],
)
def test_time_behind_a_restart_a_hole_or_a_standstill_is_not_the_runs(second, told):
    chosen = [at(1, 100.0), second]
    assert [one.code for one in add_time_between(chosen, "r")] == told
    assert between(chosen) == [None, None]
