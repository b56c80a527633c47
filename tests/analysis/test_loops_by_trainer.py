"""What each trainer logs of its loop: mismatch, staleness, waits, drafts and the prefix cache, by its own names."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from workflow.cli import main

from .sources.other_logs import NEMO_ASYNC, nemo_block

pytestmark = pytest.mark.usefixtures("no_figures")
STEPS = 16
ROWS = {
    "nemo-rl": {
        "timing/train/total_step_time": 40.0,
        "timing/train/exposed_generation": 10.0,
        "timing/train/weight_sync": 1.0,
        "train/gen_kl_error": 0.002,
        "train/avg_trajectory_age": 1.5,
        "train/buffer_size": 64.0,
        "train/evicted_stale_prompt_groups": 3.0,
        "train/avg_turns_per_sample": 2.5,
        "train/vllm/spec_acceptance_length": 2.75,
    },
    "skyrl": {
        "timing/step": 40.0,
        "timing/wait_for_generation_buffer": 8.0,
        "timing/run_training": 20.0,
        "policy/rollout_train_logprobs_abs_diff_mean": 0.012,
        "async/staleness_mean": 0.75,
        "async/num_groups_dropped": 2.0,
        "async/gen_buffer_qsize_at_wait_start": 5.0,
        "vllm/train/prefix_cache_hit_rate": 0.8,
        "generate/trajectory_time_llm_max": 31.0,
        "generate/trajectory_time_env_mean": 4.0,
    },
    "slime": {
        "perf/train_wait_time": 30.0,
        "perf/train_time": 10.0,
        "perf/rollout_time": 25.0,
        "perf/actor_train_time": 8.0,
        "perf/step_time": 40.0,
        "perf/wait_time_ratio": 0.75,
        "perf/non_generation_time/mean": 4.0,
        "train/train_rollout_logprob_abs_diff": 0.011,
        "rollout/spec_accept_length": 2.5,
        "rollout/prefix_cache_hit_rate": 0.6,
    },
    "prime-rl": {
        "time/step": 40.0,
        "time/wait_for_batch": 10.0,
        "time/wait_for_policy": 2.0,
        "mismatch_kl/all/mean": 0.001,
        "off_policy/mean": 1.25,
        "off_policy/dropped": 4.0,
        "progress/rollouts": 132.0,
        "inference/agg/prefix_cache_hit_rate/pooled": 0.7,
    },
    "areal": {
        "timeperf/rollout": 10.0,
        "ppo_actor/update/behave_approx_kl/avg": -0.004,
        "ppo_actor/update/version_stats/sample_staleness_proximal_avg": 1.5,
    },
    "roll": {
        "time/step_total": 40.0,
        "actor/train_infer_ratio_geometric_mean": math.exp(-0.003),
        "env/traj_env_time/mean": 3.0,
        "env/traj_rollout_time/max": 33.0,
    },
}
LOOPS = {
    "nemo-rl": {
        "staleness": 1.5,
        "trainer_wait_share": 0.25,
        "stale": 45,
        "in_flight": 0,
        "turns": 2.5,
        "acceptance_length": 2.75,
    },
    "skyrl": {
        "staleness": 0.75,
        "trainer_wait_share": 0.2,
        "dropped": 30,
        "in_flight": 0,
        "prefix_hit_rate": 0.8,
        "slowest_generation_s": 31,
        "tool_seconds": 4,
    },
    "slime": {
        "trainer_wait_share": 0.75,
        "acceptance_length": 2.5,
        "prefix_hit_rate": 0.6,
        "tool_seconds": 4,
        "no_engine_share": 0.375,
    },
    "prime-rl": {
        "staleness": 1.25,
        "trainer_wait_share": 0.25,
        "engine_wait_share": 0.05,
        "no_engine_share": 0.05,
        "stale": 60,
        "generated": 1980,
        "prefix_hit_rate": 0.7,
    },
    "areal": {"staleness": 1.5, "trainer_wait_share": 0.25},
    "roll": {"tool_seconds": 3, "slowest_generation_s": 33},
}
# By trainer: the definition, and the mismatch of the first arm. The second arm's is twice as much.
MISMATCH = {
    "nemo-rl": ("KL by k3", 0.002),
    "skyrl": ("mean difference of log-probabilities", 0.012),
    "slime": ("mean difference of log-probabilities", 0.011),
    "prime-rl": ("KL by k3", 0.001),
    "areal": ("KL, of tokens below a cap", 0.004),
    "roll": ("KL, by a response's geometric mean", 0.003),
}
KEYS = ("gen_kl_error", "abs_diff", "mismatch_kl", "behave_approx_kl")
COUNTERS = {"slime": "rollout/step", "prime-rl": "step"}


def rows_of(trainer, run, times):
    """wandb's rows of a run whose mismatch is `times` as much; each step differs a little."""
    draw = np.random.default_rng(run)
    for step in range(STEPS):
        row = {
            "_step": step + 1,
            "_runtime": 100.0 + 40.0 * step,
            COUNTERS.get(trainer, "trainer/global_step"): step + 1,
        }
        for name, value in ROWS[trainer].items():
            if name.endswith("_geometric_mean"):
                value = value ** (times * np.exp(draw.normal(0, 0.01)))
            elif any(key in name for key in KEYS):
                value *= times * np.exp(draw.normal(0, 0.01))
            elif name in ("perf/step_time", "time/step", "timing/step", "timing/train/total_step_time"):
                value += draw.normal(0, 1e-3)
            row[name] = value
        yield row


@pytest.mark.parametrize("trainer", ROWS)
def test_each_trainers_own_names(tmp_path, trainer):
    words = []
    for arm, times in (("a", 1.0), ("b", 2.0)):
        files = []
        for run in range(2):
            files.append(tmp_path / f"{arm}{run}.jsonl")
            rows = rows_of(trainer, 10 * run + ord(arm), times)
            files[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
        words.append(f"{arm}={','.join(map(str, files))}")
    out = tmp_path / "out"
    assert main(["compare", *words, "--trainer", trainer, "--warmup", "0", "--report", str(out)]) == 0
    (verdict,) = json.loads((out / "verdict.json").read_text())["arms"]
    definition, value = MISMATCH[trainer]
    assert "b is 2.0" in verdict["mismatch"] and definition in verdict["mismatch"], verdict
    assert pd.read_parquet(out / "tables" / "mismatch.parquet").iloc[0]["baseline"] == pytest.approx(value, rel=0.02)
    found = pd.read_parquet(out / "tables" / "loops.parquet")
    for _, run in found.iterrows():
        assert run[list(LOOPS[trainer])].to_dict() == pytest.approx(LOOPS[trainer], rel=0.01)
    assert len(found) == 4
    aged = " ".join(caveat["text"] for caveat in verdict["caveats"])
    assert ("is also of age" in aged) is ("staleness" in LOOPS[trainer])


def test_nemo_rls_console_tells_age_buffer_and_evictions(tmp_path):
    text = ""
    for step in range(1, 17):
        text += f"(ReplayBuffer pid=1)    Evicting {step} stale trajectories (version < 3)\n" if step % 2 else ""
        text += nemo_block(step, block=NEMO_ASYNC.replace("66.55s", f"{66.55 + 0.01 * step:.2f}s"))
    (tmp_path / "a.log").write_text(text)
    (tmp_path / "b.log").write_text(text.replace("Age: 1.00", "Age: 3.00").replace("66.", "67."))
    out = tmp_path / "out"
    assert (
        main(["compare", str(tmp_path / "a.log"), str(tmp_path / "b.log"), "--names", "a,b", "--report", str(out)]) == 0
    )
    found = pd.read_parquet(out / "tables" / "loops.parquet").set_index("arm")
    assert found["staleness"].to_dict() == {"a": 1.0, "b": 3.0}
    # Evictions before steps 3, 5, ... 15: the first step's lie before the ledger.
    assert found.loc["a", "stale"] == 3 + 5 + 7 + 9 + 11 + 13 + 15 and found.loc["a", "in_flight"] == 0
