"""Every column of the tables of loops, of the mismatch and of GPUs against plain arithmetic: two runs of each arm."""

from math import isnan
from statistics import geometric_mean, mean

import pandas as pd
import pytest
from arithmetic import times_as_fast

from workflow.cli import main

GPUS, SECONDS, RUNS, STEPS = {"a": 12, "b": 16}, {"a": 30.0, "b": 20.0}, (0, 1), range(1, 21)
COUNTED = STEPS[1:]
"""The first step is the warm-up, and the ledger begins behind it."""
RESPONSES, GROUP = 64, 8


def length(step):
    return 400 + 10 * (step % 5)


def seconds(arm, run, step):
    return SECONDS[arm] * (1 + 0.02 * run) + 0.1 * (step % 4)


def generated(run, step):
    return 12 * step + run * step % 7


def reward(step):
    return 0.2 + 0.02 * step


def k3(arm, run):
    return (0.001 if arm == "a" else 0.0025) * (1 + 0.1 * run)


MEANS = {
    "staleness": ("training/off_policy/trajectory_staleness/mean", lambda run, step: 1 + run + 0.1 * step),
    "partial_share": ("fully_async/partial/partial_ratio", lambda run, step: 0.2 + 0.01 * step),
    "trainer_wait_share": ("fully_async/trainer/idle_ratio", lambda run, step: 0.1 + 0.02 * step),
    "engine_wait_share": ("fully_async/rollouter/idle_ratio", lambda run, step: 0.3 - 0.01 * step),
    "turns": ("training/num_turns/mean", lambda run, step: 2 + 0.25 * step),
    "tool_seconds": ("agent_loop/tool_calls/mean", lambda run, step: 0.5 + 0.125 * step),
    "slowest_generation_s": ("agent_loop/slowest/generate_sequences", lambda run, step: 9 + 0.5 * step),
    "acceptance_length": ("rollout/spec_accept_length", lambda run, step: 2 + 0.05 * step),
}
STALE = ("training/off_policy/evicted_samples", lambda step: step % 3)
DROPPED = {
    "training/filter_groups/evicted_samples": lambda step: step % 2,
    "training/filter_groups/discarded_surplus_samples": lambda step: 3,
    "training/rollout_failure/evicted_samples": lambda step: step % 4,
}


def console(arm, run):
    lines = [
        "verl==0.9.1\n+ python3 -m verl.experimental.fully_async_policy.fully_async_main trainer.nnodes=1 "
        f"actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n={GROUP} trainer.n_gpus_per_node=8 "
        f"rollout.nnodes=1 rollout.n_gpus_per_node={GPUS[arm] - 8}"
    ]
    for step in STEPS:
        pairs = {
            "response_length/mean": length(step),
            "response_length/max": 4 * length(step) + 50 * (step % 3),
            "prompt_length/mean": 100,
            "perf/total_num_tokens": (length(step) + 100) * RESPONSES,
            "critic/score/mean": reward(step),
            "timing_s/step": seconds(arm, run, step),
            "rollout_corr/k3_kl": k3(arm, run),
            "fully_async/count/total_generated_samples": generated(run, step),
            "fully_async/count/dropped_stale_samples": 2 * step,
            "fully_async/monitor/queue/mq_queue_size": 5 + step % 6,
        }
        pairs |= {name: value(run, step) for name, value in MEANS.values()}
        # verl logs no count of nothing.
        pairs |= {name: count(step) for name, count in (STALE, *DROPPED.items()) if count(step)}
        lines.append(
            f"(FullyAsyncTaskRunner pid=1) step:{step} - " + " - ".join(f"{n}:{v:.9f}" for n, v in pairs.items())
        )
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def tables(tmp_path_factory, no_figures):
    folder = tmp_path_factory.mktemp("loops")
    for arm in GPUS:
        for run in RUNS:
            (folder / f"{arm}{run}.log").write_text(console(arm, run))
    words = [f"{arm}={','.join(str(folder / f'{arm}{run}.log') for run in RUNS)}" for arm in GPUS]
    assert main(["compare", *words, "--report", str(folder / "report")]) == 0
    return lambda name: pd.read_parquet(folder / "report" / "tables" / f"{name}.parquet").to_dict("records")


def check(rows, right):
    """Each row has exactly the right cells: a new column needs its arithmetic here."""
    assert len(rows) == len(right)
    for row, cells in zip(rows, right, strict=True):
        assert set(row) == set(cells)
        for name, value in cells.items():
            same = value if isinstance(value, str) else pytest.approx(value, rel=1e-6, nan_ok=True)
            assert row[name] == same, name


def test_loops(tables):
    right = []
    for arm in GPUS:
        for run in RUNS:
            first, last = STEPS[0], STEPS[-1]
            old = 2 * (last - first)
            cells = {"factors": "", "arm": arm, "run_id": f"{arm}-s{run}", "unit": "groups", "not_logged": ""}
            cells["generated"] = generated(run, last) - generated(run, first) + old
            cells["trained"] = len(COUNTED) * RESPONSES / GROUP
            cells["stale"] = old + sum(map(STALE[1], COUNTED))
            cells["dropped"] = sum(count(step) for count in DROPPED.values() for step in COUNTED)
            cells["in_flight"] = last % 6 - first % 6
            others = sum(cells[name] for name in ("trained", "stale", "dropped", "in_flight"))
            cells["unaccounted"] = cells["generated"] - others
            cells |= {name: mean(value(run, step) for step in COUNTED) for name, (_, value) in MEANS.items()}
            # verl logs no prefix hits; beside training engines work all the time but when they wait.
            cells |= {"no_engine_share": cells["engine_wait_share"], "prefix_hit_rate": float("nan")}
            right.append(cells)
    assert isnan(tables("loops")[0]["prefix_hit_rate"])
    check(tables("loops"), right)


def test_mismatch(tables):
    near, far = ([k3(arm, run) for run in RUNS] for arm in GPUS)
    ratio, low, high = times_as_fast(far, near)
    cells = {"factors": "", "arm": "b", "definition": "KL by k3", "baseline": geometric_mean(near)}
    cells |= {"arm_value": geometric_mean(far), "ratio": ratio, "low": low, "high": high, "at_equal_lengths": True}
    check(tables("mismatch"), [cells])


def test_gpus(tables):
    tokens = sum(RESPONSES * length(step) for step in COUNTED)
    rates, hours = {}, {}
    # A line's mean of five lags by two: nine tenths of the way from step 3 to 18 are between 16 and 17, reached in 19.
    reached, until = reward(3) + 0.9 * (reward(18) - reward(3)), STEPS[:19]
    for arm, gpus in GPUS.items():
        rates[arm] = [tokens / sum(gpus * seconds(arm, run, step) for step in COUNTED) for run in RUNS]
        hours[arm] = [gpus * sum(seconds(arm, run, step) for step in until) / 3600 for run in RUNS]
    cells = {"factors": "", "arm": "b", "baseline_gpus": "12", "arm_gpus": "16", "reward": reached}
    cells |= {"baseline_tokens": geometric_mean(rates["a"]), "arm_tokens": geometric_mean(rates["b"])}
    cells |= dict(zip(("ratio", "low", "high"), times_as_fast(rates["b"], rates["a"]), strict=True))
    cells |= {"baseline_hours": geometric_mean(hours["a"]), "arm_hours": geometric_mean(hours["b"])}
    names = ("hours_ratio", "hours_low", "hours_high")
    cells |= dict(zip(names, times_as_fast(hours["b"], hours["a"]), strict=True))
    check(tables("per_gpu"), [cells])
