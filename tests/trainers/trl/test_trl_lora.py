"""TRL with a LoRA adapter and vLLM in its process, on a CPU: a run that is killed, and its second life."""

import json
import signal

import pytest

from node.hf_training import is_complete
from node.seeds import engine_seed

from ...attempts import EAGER, TRAIN, VLLM_ARGS, read_lines, run_job, run_warm, write_attempt
from .test_trl_grpo import COMMON, PREPARE, check_tree

pytestmark = pytest.mark.full("two lives with an adapter and vLLM")

STACK = "trl-lora-vllm-cpu"
MERGED = f"{PREPARE}/sync_weights/merge_adapter"
# No dropout: only the policy's own passes would have it, and a token's log-probability would differ from vLLM's.
ADAPTER = {
    **{"use_peft": True, "lora_r": 16, "lora_alpha": 64, "lora_dropout": 0.0, "learning_rate": 0.01},
    "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
# Killed without warning when the third step is logged, and its checkpoint is still to be saved.
KILLED = """
import os, signal
from common import retry
append = retry.append_json_line
def killed(path, line):
    append(path, line)
    if line.get("step") == 3:
        os.kill(os.getpid(), signal.SIGKILL)
retry.append_json_line = killed
"""


def test_a_killed_run_goes_on_and_vllm_has_the_merged_adapter_at_every_step(stack_python, made_inputs, tmp_path):
    python, run = stack_python(STACK), tmp_path / "lora-s0"
    settings = {**VLLM_ARGS, **ADAPTER, "vllm_importance_sampling_correction": True, "max_steps": 4}
    first, second = (write_attempt(run, made_inputs, number, **settings).parent for number in (1, 2))
    died = run_warm(python, "-c", KILLED + TRAIN, first / "attempt.json", **EAGER)
    assert died.returncode == -signal.SIGKILL and not (first / "done.json").exists(), died.stderr
    done = run_job(python, "trainers.trl.driver.train", second / "attempt.json", **EAGER)
    assert done.returncode == 0, done.stderr
    lines = read_lines(first / "metrics.jsonl") + read_lines(second / "metrics.jsonl")
    # The last one with a whole checkpoint is the second.
    assert [line["step"] for line in lines] == [1, 2, 3, 3, 4]
    assert [line["resumed"] for line in lines] == [False, False, False, True, False]
    for line in lines:
        check_tree(line["phases"])
        assert set(line["phases"]) == COMMON | {
            *(f"{PREPARE}/{name}" for name in ("sync_weights", "extract", "old_log_prob")),
            MERGED,
        }
        assert line["phases"][MERGED] > 0
        # The engine's and the trainer's log-probabilities of the same tokens: equal weights, equal precision.
        assert line["scalars"]["train/sampling/sampling_logp_difference/max"] < 1e-4  # nats
    # The adapter has learned, and its second life goes on with what it has learned.
    kl = [line["scalars"]["train/kl"] for line in lines]
    assert kl[0] < 1e-6 and min(kl[1:]) > 1e-3
    told = json.loads((second / "done.json").read_text())
    assert told["versions"]["peft"] and told["first_step"] == 3
    assert told["resolved"]["engine"]["seed"] == engine_seed(0, 2)
    # What the adapter was made with, TRL's own values included.
    assert (told["resolved"]["trainer"].items()) >= {**ADAPTER, "lora_task_type": "CAUSAL_LM"}.items()
    checkpoint = run / "checkpoints" / "abababababab" / "checkpoint-4"
    assert (checkpoint / "adapter_model.safetensors").stat().st_size < 2e6 and is_complete(checkpoint, 4)
    assert not list(checkpoint.glob("model*.safetensors"))
