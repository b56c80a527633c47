"""TRL with a LoRA adapter and with vLLM in its process, on a CPU: one run in two lives."""

import json

import pytest

from node.hf_training import is_complete

from ...attempts import EAGER, VLLM_ARGS, read_lines, run_job, write_attempt
from .test_trl_grpo import COMMON, PREPARE, check_tree

pytestmark = pytest.mark.full("two lives with an adapter and vLLM")

STACK = "trl-lora-vllm-cpu"
MERGED = f"{PREPARE}/sync_weights/merge_adapter"
# No dropout: only the policy's own passes would have it, and a token's log-probability would differ from vLLM's.
ADAPTER = {
    **{"use_peft": True, "lora_r": 16, "lora_alpha": 64, "lora_dropout": 0.0, "learning_rate": 0.01},
    "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}


def test_vllm_generates_with_the_merged_adapter_at_every_step_of_both_lives(stack_python, made_inputs, tmp_path):
    settings = {**VLLM_ARGS, **ADAPTER, "vllm_importance_sampling_correction": True}
    lives = []
    for number, steps in ((1, 2), (2, 4)):
        attempt = write_attempt(tmp_path / "lora-s0", made_inputs, number, max_steps=steps, **settings)
        done = run_job(stack_python(STACK), "trainers.trl.driver.train", attempt, **EAGER)
        assert done.returncode == 0, done.stderr
        lives.append(attempt.parent)
    lines = [line for life in lives for line in read_lines(life / "metrics.jsonl")]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["resumed"] for line in lines] == [False, False, True, False]
    for line in lines:
        check_tree(line["phases"])
        assert set(line["phases"]) == COMMON | {
            *(f"{PREPARE}/{name}" for name in ("sync_weights", "extract", "old_log_prob")),
            MERGED,
        }
        assert line["phases"][MERGED] > 0
        assert line["scalars"]["train/sampling/sampling_logp_difference/max"] < 1e-4  # nats
    # The adapter has learned, and its second life goes on with what it has learned.
    kl = [line["scalars"]["train/kl"] for line in lines]
    assert kl[0] < 1e-6 and min(kl[1:]) > 1e-3
    told = json.loads((lives[1] / "done.json").read_text())
    assert told["versions"]["peft"] and told["first_step"] == 3
    # What the adapter was made with, TRL's own values included.
    assert (told["resolved"]["trainer"].items()) >= {**ADAPTER, "lora_task_type": "CAUSAL_LM"}.items()
    checkpoint = tmp_path / "lora-s0" / "checkpoints" / "abababababab" / "checkpoint-4"
    assert (checkpoint / "adapter_model.safetensors").stat().st_size < 2e6 and is_complete(checkpoint, 4)
    assert not list(checkpoint.glob("model*.safetensors"))
