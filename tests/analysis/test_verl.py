"""verl's flat timer keys in their trees: the article's numbers by hand, and what versions and loops do differently."""

import random

import make_results
import pytest
import roofline_results
from make_results import collected

from analysis.report.content import read_content
from trainers.registry import tree_for
from trainers.timers.flat import nest_timers, timer_places

ARTICLE = {key.removeprefix("timing_s/"): seconds for key, seconds in roofline_results.ARTICLE.items()}
V041, V091 = {"verl": "0.4.1"}, {"verl": "0.9.1"}


def timers(seconds):
    return {f"timing_s/{name}": value for name, value in seconds.items()}


def verl_row(step, seconds, lengths=(100, 200, 300, 424), **scalars):
    """A line as the verl job writes it: no phases, all of verl's keys among the scalars."""
    known = {
        "training/global_step": step,
        "critic/score/mean": 0.25,
        "response_length/mean": sum(lengths) / len(lengths),
        "response_length/max": max(lengths),
        "prompt_length/mean": 50.0,
        "prompt_tokens": 50 * len(lengths),
        "response_tokens": sum(lengths),
        **timers(seconds),
    }
    more = {"resumed": scalars.pop("resumed")} if "resumed" in scalars else {}
    return {
        "step": step, "time": 1.7e9 + step, "resumed": False, "phases": {}, "scalars": known | scalars,
        "samples": {"response_length": list(lengths)}, **more,
    }  # fmt: skip


def write_run(tmp_path, attempts, versions=V041, engine="sglang", run_id="r", arm="sglang", seed=0, **more):
    args = more.pop("trainer_args", {"version": versions["verl"], "overrides": []})
    spec_more = {"trainer": "verl", "stack": f"verl-{engine}", "trainer_args": args} | more.pop("spec_more", {})
    spec_more.setdefault("workload", {"batch_size": 4})
    done_more = {"versions": {"python": "3.11.7", **versions}, "resolved": {}} | more.pop("done_more", {})
    return make_results.write_run(
        tmp_path, run_id, arm, seed, attempts, engine=engine, spec_more=spec_more, done_more=done_more
    )


def of(metadata, code):
    return [v["text"] for v in metadata["verdicts"] if v["code"] == code]


def values(frame, step=1):
    return frame[(frame["step"] == step) & (frame["kind"] != "sample")].set_index("name")["value"].to_dict()


def test_the_articles_step_with_sglang(tmp_path):
    run_dir = write_run(tmp_path, [[verl_row(1, ARTICLE), verl_row(2, ARTICLE)]])
    frame, metadata = collected(run_dir)
    assert metadata == {"timers": "verl 0.4.1", "attempts": [1], "verdicts": []}
    phases = frame[(frame["kind"] == "phase") & (frame["step"] == 1)].set_index("name")
    own, whole = phases["exclusive_s"], phases["value"]
    assert own["step"] == pytest.approx(0.007, abs=1e-9)
    assert own["step/gen"] == pytest.approx(382.913 - 380.170 - 2.311, abs=1e-9)
    assert phases.loc["step/gen/reshard", "parent"] == "step/gen"
    children = phases[phases["parent"] == "step"]["value"]
    assert children.sum() == pytest.approx(408.183, abs=1e-9)
    assert children.sum() + whole["step/gen/reshard"] == pytest.approx(410.494, abs=1e-9), "the article's sum"
    assert own.sum() == pytest.approx(408.190, abs=1e-9)
    assert not [name for name in frame["name"] if name.startswith("timing_s/")]


def test_numpys_names_of_roles_are_the_reference():
    found = nest_timers(timers({"step": 9.0, "Role.RefPolicy": 1.5}), tree_for("verl", "0.9.1", "vllm", "legacy"))
    assert found.phases == {"step": 9.0, "step/ref": 1.5}


LEGACY = {
    "step": 30.0, "gen": 20.0, "start_profile": 1e-5, "stop_profile": 1e-5, "agent_loop/generate_sequences/min": 3.0,
    "agent_loop/generate_sequences/max": 18.0, "agent_loop/generate_sequences/mean": 9.0,
    "agent_loop/tool_calls/mean": 0.0, "agent_loop/compute_score/mean": 0.25, "agent_loop/num_preempted/min": 0.0,
    "agent_loop/num_preempted/max": 3.0, "agent_loop/num_preempted/mean": 1.5,
    "agent_loop/slowest/generate_sequences": 18.0, "agent_loop/slowest/tool_calls": 0.0,
    "agent_loop/slowest/compute_score": 0.5, "agent_loop/slowest/num_preempted": 3.0,
    "agent_loop/slowest/prompt_length": 301.0, "agent_loop/slowest/response_length": 31744.0, "update_actor": 8.0,
    "update_weights": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [
        {"trainer_args": {"version": "0.9.1", "overrides": ["trainer.use_v1=True", "trainer.use_v1=False"]}},
        {"done_more": {"resolved": {"trainer": {"trainer": {"use_v1": False}}}}},
        {"done_more": {"resolved": {"trainer": {"trainer.use_v1": False}}}},
    ],
)
def test_legacy_counts_are_never_seconds_and_the_slowest_sample_is_the_part_of_gen(tmp_path, how):
    frame, metadata = collected(write_run(tmp_path, [[verl_row(1, LEGACY)]], V091, **how))
    assert metadata["timers"] == "verl 0.9.1 legacy" and not metadata["verdicts"]
    phases = frame[frame["kind"] == "phase"].set_index("name")
    assert set(phases.index) == {
        "step",
        "step/gen",
        "step/gen/slowest_generate_sequences",
        "step/gen/slowest_tool_calls",
        "step/gen/slowest_compute_score",
        "step/update_actor",
        "step/update_weights",
    }
    assert phases.loc["step/gen", "exclusive_s"] == 1.5 and phases.loc["step", "exclusive_s"] == 1.0
    units = frame[frame["kind"] == "scalar"].set_index("name")["unit"].to_dict()
    assert {units[f"agent_loop/num_preempted/{s}"] for s in ("min", "max", "mean")} == {"1"}
    assert units["agent_loop/slowest/num_preempted"] == "1"
    assert units["agent_loop/slowest/response_length"] == units["agent_loop/slowest/prompt_length"] == "tokens"
    assert units["agent_loop/generate_sequences/max"] == units["outside_step_s/stop_profile"] == "s"
    assert units["response_length/mean"] == "tokens" and units["critic/score/mean"] == "1"


def noisy_steps(inside, seconds, seed=0, residual=0.01, noise=0.005, steps=20):
    """Steps whose every 4th has the timers in `seconds`; those in `inside` are part of the step."""
    random_ = random.Random(seed)
    made = []
    for step in range(1, steps + 1):
        timed = {k: v * random_.uniform(0.9, 1.1) for k, v in seconds.items()} if step % 4 == 0 else {}
        gen = random_.uniform(5, 9)
        whole = gen + residual + random_.uniform(0, noise) + sum(timed[k] for k in inside if k in timed)
        made.append(timers({"gen": gen, "step": whole} | timed))
    return made


@pytest.mark.parametrize("version", ["0.4.1", "0.9.1"])
@pytest.mark.parametrize("inside", [(), ("testing",), ("save_checkpoint",), ("testing", "save_checkpoint")])
def test_the_residual_tells_where_testing_and_saving_lie(version, inside):
    tree = tree_for("verl", version, "vllm")
    places, verdicts = timer_places(noisy_steps(inside, {"testing": 3.0, "save_checkpoint": 0.7}), tree, "r")
    assert {k for k, path in places.items() if path.startswith("step/")} == set(inside)
    declared = {"0.4.1": ("testing", "save_checkpoint"), "0.9.1": ("save_checkpoint",)}[version]
    for key, verdict in zip(sorted(places, key=list(places).index), verdicts, strict=True):
        assert key in verdict.text and verdict.code == "timer-place"
        as_declared = (key in inside) == (key in declared)
        assert verdict.level == ("note" if as_declared else "warning")
        assert ("as declared" if as_declared else "overrides the declared place") in verdict.text


def test_an_undeclared_timer_is_named_and_in_no_sum(tmp_path):
    row = verl_row(3, ARTICLE | {"get_batch_rollout_with_filtering": 33.5})
    rows = [verl_row(1, ARTICLE), verl_row(2, ARTICLE), row]
    frame, metadata = collected(write_run(tmp_path, [rows]))
    assert values(frame, 3)["undeclared/get_batch_rollout_with_filtering"] == 33.5
    (said,) = of(metadata, "undeclared-phase")
    assert "timer get_batch_rollout_with_filtering (step 3: 33.5) is not declared for verl 0.4.1" in said
    assert "trainers/<trainer>/trainer.toml" in said
    assert frame[frame["name"] == "step"]["exclusive_s"].tolist() == pytest.approx([0.007] * 3, abs=1e-9)


def test_lines_of_a_validation_only_are_no_training_steps(tmp_path):
    """verl logs its validation before training at step 0, and after a resume at the step that was resumed from."""
    validation = {"step": 0, "time": 1.0, "resumed": False, "phases": {}, "scalars": {"val-core/acc": 0.1}}
    first = [validation, verl_row(1, ARTICLE), verl_row(2, ARTICLE)]
    second = [validation | {"step": 2, "resumed": True}, verl_row(3, ARTICLE, resumed=True)]
    frame, metadata = collected(write_run(tmp_path, [first, second]))
    assert sorted(set(frame["step"])) == [1, 2, 3] and not metadata["verdicts"]
    assert frame.groupby("step")["attempt"].first().to_dict() == {1: 1, 2: 1, 3: 2}
    assert frame.groupby("step")["resumed"].first().to_dict() == {1: False, 2: False, 3: True}


PLAIN = {"gen": 8.0, "update_actor": 1.0, "step": 9.0}


def compared(tmp_path, slow, quick):
    """The report of two arms whose steps have these timers; None: that run is there."""
    rows = {"b": ("vllm", slow), "a": ("sglang", quick)}
    for run_id, (engine, steps) in rows.items():
        if steps is None:
            continue
        lines = [verl_row(number, seconds) for number, seconds in enumerate(steps, start=1)]
        collected(write_run(tmp_path, [lines], engine=engine, run_id=run_id, arm=engine))
    arms = {engine: {"trainer": "verl", "engine": engine, "stack": f"verl-{engine}"} for engine in ("vllm", "sglang")}
    make_results.write_plan(tmp_path, arms, list(rows), 0, baseline="vllm")
    return read_content(tmp_path / "plan.json", tmp_path, None, None)


def test_a_step_that_lost_completions_counts_in_no_arm(tmp_path):
    lines = [verl_row(number, PLAIN, missing_completions=2 * (number == 2)) for number in (1, 2, 3)]
    collected(write_run(tmp_path, [lines], engine="vllm", run_id="b", arm="vllm"))
    found = compared(tmp_path, None, [PLAIN] * 3)
    assert found.tables["comparison"]["arm_steps"].tolist() == [2]
    (said,) = [v.text for v in found.verdicts if v.code == "step-left-out"]
    assert "step 2 (completions failed, and the step went on without them)" in said
