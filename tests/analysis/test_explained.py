"""The raw ratio as a product: by hand, exact, with intervals that hold the truth, and no guess where data lacks."""

import math
from dataclasses import replace

import make_results
import numpy as np
import pandas as pd
import pytest

from analysis.collect import collect_run
from analysis.estimates.explained import product
from analysis.estimates.parts import ENGINE, FACTORS, IN_TRAINING, LENGTHS, OTHER_PHASES, REST, SYNC
from analysis.estimates.replays import StepSample
from analysis.report.content import read_content
from analysis.report.rendering import html_page, markdown
from analysis.steps import write_steps

pytestmark = pytest.mark.usefixtures("undrawn")
STEP = "timing_s/step"
CHAIN = ("a-alone", "b-alone")


def pairs_of(a, b, tokens=(100.0, 100.0), longest=(10.0, 10.0)):
    """Paired steps from (step, generation, sync) of both arms, each a number or one for every step."""
    found = {}
    for side, (step, gen, sync), t, x in (("a", a, tokens[0], longest[0]), ("b", b, tokens[1], longest[1])):
        found |= {f"{STEP}_{side}": step, f"generation_s_{side}": gen, f"sync_s_{side}": sync}
        found |= {f"response_tokens_{side}": t, f"max_response_length_{side}": x}
    steps = max(np.size(value) for value in found.values())
    frame = pd.DataFrame({name: np.broadcast_to(np.asarray(v, dtype=float), steps) for name, v in found.items()})
    return frame.assign(seed=0, step=range(1, len(frame) + 1))


def replays(*seconds):
    """One run of replays: a column of seconds for each arm of the chain."""
    columns = np.array(seconds, dtype=float)
    return StepSample(columns, (len(columns),), [np.log(columns[:, 0] / columns[:, -1])])


def parts(pairs, replay=None, chain=CHAIN, lacks="no replay", resamples=200):
    return pd.DataFrame(product(pairs, replay, chain, lacks, "", resamples)).set_index("part")


def test_by_hand():
    """10 s = 6 + 1 + 3 against 5 = 3 + 0.5 + 1.5, the engine alone 1.5 times as fast: ln 2 in parts of its tenths."""
    found = parts(pairs_of((10, 6, 1), (5, 3, 0.5)), replays([3.0, 2.0]))
    assert found.loc[ENGINE, "value"] == pytest.approx(1.5**0.6, rel=1e-12)
    assert found.loc[LENGTHS, "value"] == pytest.approx(1, rel=1e-12)
    assert found.loc[SYNC, "value"] == pytest.approx(2**0.1, rel=1e-12)
    assert found.loc[IN_TRAINING, "value"] == pytest.approx((2 / 1.5) ** 0.6, rel=1e-12)
    assert found.loc[OTHER_PHASES, "value"] == pytest.approx(2**0.3, rel=1e-12)
    assert found.loc[[*FACTORS], "value"].prod() == pytest.approx(2, rel=1e-12)
    assert found.loc[REST, "value"] == pytest.approx(found.loc[[IN_TRAINING, OTHER_PHASES], "value"].prod())
    # Of its own phase: what each does before the other phases dilute it.
    told = found.loc[[ENGINE, SYNC, IN_TRAINING, OTHER_PHASES], "phase_ratio"].tolist()
    assert told == pytest.approx([1.5, 2, 2 / 1.5, 2])
    assert set(found["scope"]) == {"one step"} and set(found["verdict"]) == {"~"} and found["low"].isna().all()


def test_a_factor_without_data_says_so_and_the_rest_holds_it():
    unknown = math.nan
    pairs = pairs_of((10, 6, unknown), (5, 3, 0.5), tokens=(unknown, 100))
    found = parts(pairs, lacks="no run of the replay b-alone")
    assert found.loc[[ENGINE, LENGTHS, SYNC], "value"].isna().all()
    assert found.loc[ENGINE, "why"] == "no run of the replay b-alone"
    assert "response tokens of the baseline are not known" in found.loc[LENGTHS, "why"]
    assert found.loc[SYNC, "why"] == "weight sync is not timed in both arms"
    assert found.loc[REST, "value"] == pytest.approx(2, rel=1e-12)
    held = "including the unknown: engine at equal work, lengths of the responses, weight sync"
    assert held in found.loc[REST, "estimator"]
    untimed = parts(pairs_of((10, unknown, 1), (5, 3, 0.5)))
    assert untimed["value"].isna().all() and set(untimed["why"]) == {
        "generation is not timed in all paired steps of both"
    }


def drawn(seed, steps, scale=1.0):
    draw = np.random.default_rng(seed)
    longest = np.round(draw.uniform(400, 900, steps) * scale)
    return np.round(longest * 20 + draw.uniform(0, 6000, steps)), longest


def test_longer_responses_are_the_lengths_factor_and_not_the_engines():
    """Generation is linear in the work, the arm twice as fast at any, its responses half again as long."""
    (tokens_a, longest_a), (tokens_b, longest_b) = drawn(1, 40), drawn(2, 40, scale=1.5)
    gen_a, gen_b = (0.01 * x + 1e-4 * t + 1 for t, x in ((tokens_a, longest_a), (tokens_b, longest_b)))
    a, b = (gen_a + 3, gen_a, 0.5), (gen_b / 2 + 3, gen_b / 2, 0.5)
    found = parts(pairs_of(a, b, (tokens_a, tokens_b), (longest_a, longest_b)), replays(*[[2.0, 1.0]] * 20))
    assert found.loc[ENGINE, "phase_ratio"] == pytest.approx(2)
    assert found.loc[LENGTHS, "phase_ratio"] == pytest.approx(gen_a.sum() / gen_b.sum(), rel=0.01)
    # Nothing of generation is left: what the replay and the lengths say is all of it.
    assert found.loc[[IN_TRAINING, OTHER_PHASES], "value"].tolist() == pytest.approx([1, 1], abs=0.005)
    assert found.loc[SYNC, "value"] == pytest.approx(1)
    raw = a[0].sum() / b[0].sum()
    assert found.loc[[*FACTORS], "value"].prod() == pytest.approx(raw, rel=1e-12)
    assert "fit of generation" in found.loc[LENGTHS, "estimator"]


def test_replays_between_divide_the_engines_factor():
    """Graphs bring 1.6, the other engine then 1.25."""
    chain = ("eager", "graphs", "other")
    found = parts(pairs_of((10, 6, 1), (5, 3, 0.5)), replays([4.0, 2.5, 2.0]), chain)
    links = [f"{ENGINE}/graphs vs eager", f"{ENGINE}/other vs graphs"]
    assert found.loc[links, "phase_ratio"].tolist() == pytest.approx([1.6, 1.25])
    assert found.loc[links, "value"].prod() == pytest.approx(found.loc[ENGINE, "value"])


def experiment(draw, runs=3, steps=16, spread=0.03, engine=1.4, in_training=1.1):
    """Noisy runs of both kinds: each run a little slower or faster in all its steps, each step by itself, too."""

    def seconds(mean):
        return mean * np.exp(draw.normal(0, spread, (runs, 1)) + draw.normal(0, 2 * spread, (runs, steps))).ravel()

    gen_a, gen_b, sync_a, sync_b, rest_a, rest_b = map(seconds, (8.0, 8.0 / engine / in_training, 0.5, 1.0, 3.0, 3.0))
    a, b = (gen_a + sync_a + rest_a, gen_a, sync_a), (gen_b + sync_b + rest_b, gen_b, sync_b)
    pairs = pairs_of(a, b).assign(seed=np.repeat(range(runs), steps), step=np.tile(range(steps), runs))
    columns = np.stack([seconds(7.0), seconds(7.0 / engine)], axis=1)
    series = np.split(np.log(columns[:, 0] / columns[:, 1]), runs)
    return pairs, StepSample(columns, (steps,) * runs, series)


def test_the_intervals_hold_the_truth():
    """60 simulated experiments; 95% of 60 is 57, and 51 or fewer come by chance once in 10,000."""
    gen, rest = (8.0, 8.0 / 1.4 / 1.1), 3.0
    step = (gen[0] + 0.5 + rest, gen[1] + 1.0 + rest)
    mean = (step[0] - step[1]) / math.log(step[0] / step[1])
    weight = (gen[0] - gen[1]) / math.log(gen[0] / gen[1]) / mean
    truth = {ENGINE: weight * math.log(1.4), SYNC: -0.5 / mean, IN_TRAINING: weight * math.log(1.1), OTHER_PHASES: 0.0}
    truth[REST] = truth[IN_TRAINING]
    draw, held, widths = np.random.default_rng(5), dict.fromkeys(truth, 0), []
    for _ in range(60):
        found = parts(*experiment(draw), resamples=200)
        assert set(found["scope"]) == {"across runs"}
        for part, log in truth.items():
            held[part] += found.loc[part, "low"] <= math.exp(log) <= found.loc[part, "high"]
        widths.append(found.loc[ENGINE, "high"] / found.loc[ENGINE, "low"])
    assert min(held.values()) >= 52, held
    # Wide enough, and of use: it tells 1.3 from 1.
    assert np.median(widths) < 1.4


def test_one_pair_of_either_kind_claims_no_direction():
    pairs, sample = experiment(np.random.default_rng(2))
    one = pairs["seed"] == 0
    of_trained = parts(pairs[one], sample)
    single = replace(sample, columns=sample.columns[:16], lengths=(16,), series=sample.series[:1])
    of_replay = parts(pairs, single)
    assert set(of_trained["scope"]) == {"within-run only"} and set(of_trained["verdict"]) == {"~"}
    assert of_replay.loc[ENGINE, ["scope", "verdict"]].tolist() == ["within-run only", "~"]
    assert of_replay.loc[SYNC, ["scope", "verdict"]].tolist() == ["across runs", "-"]
    assert of_replay.loc[ENGINE, "low"] < of_replay.loc[ENGINE, "value"] < of_replay.loc[ENGINE, "high"]
    assert "one pair of runs" in of_replay.loc[ENGINE, "why"] and of_replay.loc[SYNC, "why"] == ""


def test_lengths_by_floors_alone_may_be_all_or_nothing():
    """Lengths that are the same in every step have no fit, and how much of generation grows with a floor is unknown."""
    pairs, sample = experiment(np.random.default_rng(3))
    pairs = pairs.assign(response_tokens_b=150.0, equal_floor_s_a=2.0, equal_floor_s_b=3.0)
    found = parts(pairs, sample).loc[LENGTHS]
    assert found["phase_ratio"] == pytest.approx(2 / 3) and "decode floors" in found["estimator"]
    assert found["low"] <= found["value"] < 1 <= found["high"] and found["verdict"] == "~"


# Of files: two trained arms and their replays.

ARMS = {
    "vllm": {"trainer": "trl", "engine": "vllm"},
    "other": {"trainer": "trl", "engine": "sglang"},
    "vllm-alone": {"trainer": "replay", "engine": "vllm"},
    "other-alone": {"trainer": "replay", "engine": "sglang"},
}
EXPLAIN = {"other": ["vllm-alone", "other-alone"]}


def folder_of(tmp_path, report=None, alone_lengths=(20, 20), cpus=("Some CPU", "Some CPU"), seeds=2):
    results = tmp_path / "case"
    generation = {"vllm": 3.0, "other": 2.0, "vllm-alone": 1.5, "other-alone": 1.25}
    for arm, words in ARMS.items():
        alone = words["trainer"] == "replay"
        place = list(ARMS).index(arm) % 2
        for seed in range(seeds):
            draw, rows = np.random.default_rng([list(ARMS).index(arm), seed]), []
            for step in range(1, 9):
                gen, length = generation[arm] * draw.uniform(0.97, 1.03), alone_lengths[place] if alone else 20
                if alone:
                    phases = {"step": gen + 0.1, "step/generate": gen, "step/sync_weights": 0.1}
                else:
                    phases = make_results.phases_from_leaves(make_results.leaves(gen, 0.1, 0.2))
                names = ("replay/mean_length", "replay/max_length")
                names = names if alone else ("train/completions/mean_length", "train/completions/max_length")
                scalars = dict.fromkeys(names, float(length))
                rows.append(make_results.metrics_row(step, phases, lengths=[length] * 4, scalars=scalars))
            run_id = f"{arm}-s{seed}"
            hardware = {"host": "n", "cpu": cpus[place], "cpus": 2, "threads": 2, "memory_gib": 8, "gpus": []}
            more = {"versions": {"replay": "1"}} if alone else {}
            make_results.write_run(
                results, run_id, arm, seed, [rows], engine=words["engine"],
                spec_more={"trainer": words["trainer"]}, done_more=more, hardware=hardware if alone else None,
            )  # fmt: skip
            write_steps(collect_run(results / "runs" / run_id), results / "runs" / run_id / "steps.parquet")
    runs = [f"{arm}-s{seed}" for arm in ARMS for seed in range(seeds)]
    asked = {} if report is None else {"report": {"explain": report}}
    make_results.write_plan(results, ARMS, runs, 1, **asked)
    return results


def content_of(folder, **more):
    return read_content(folder / "plan.json", folder, more.get("baseline"), None)


def test_a_report_takes_the_ratio_apart(tmp_path):
    content = content_of(folder_of(tmp_path, EXPLAIN))
    # The replays are no rivals of a training.
    assert [one.arm for one in content.arm_verdicts if one.baseline == content.plan.baseline] == ["other"]
    assert set(content.tables["estimates"]["arm"]) == set(content.tables["comparison"]["arm"]) == {"other"}
    found = content.tables["explained"].set_index("part")
    raw = content.tables["estimates"].set_index("estimate").loc["raw", "value"]
    assert found.loc["raw", "value"] == raw and found.loc["raw", "share"] == 1
    assert found.loc[[*FACTORS], "value"].prod() == pytest.approx(raw, rel=1e-12)
    assert found.loc[[*FACTORS], "share"].sum() == pytest.approx(1)
    assert found.loc[ENGINE, "phase_ratio"] == pytest.approx(1.2, rel=0.03)
    assert found.loc[ENGINE, "low"] < found.loc[ENGINE, "value"] < found.loc[ENGINE, "high"]
    assert found.loc[ENGINE, ["replay_pairs", "replay_steps"]].tolist() == [2, 14]
    assert found.loc[SYNC, "value"] == pytest.approx(1) and found.loc[LENGTHS, "value"] == 1
    page, text = html_page(content), markdown(content)
    for part in (page, text):
        assert "What the ratio is made of" in part and "other vs vllm: raw" in part and "engine at equal work" in part
    assert len(content.tables["explained"])
    assert not {v.code for v in content.verdicts} & {"replay-other-lengths", "replay-ran-otherwise", "trainers-differ"}


@pytest.mark.parametrize(
    ("more", "why", "codes"),
    [
        ({"alone_lengths": (20, 30)}, "the replays' completions are not of equal lengths", {"replay-other-lengths"}),
        ({"cpus": ("Some CPU", "Faster CPU")}, "the replays ran with other processors", {"replay-ran-otherwise"}),
    ],
)
def test_replays_that_are_no_equal_work_explain_nothing(tmp_path, more, why, codes):
    content = content_of(folder_of(tmp_path, EXPLAIN, **more))
    found = content.tables["explained"].set_index("part")
    assert math.isnan(found.loc[ENGINE, "value"]) and why in found.loc[ENGINE, "why"]
    assert found.loc[[LENGTHS, SYNC, REST], "value"].prod() == pytest.approx(found.loc["raw", "value"])
    assert "engine: unknown" in markdown(content)
    assert codes <= {v.code for v in content.verdicts}
