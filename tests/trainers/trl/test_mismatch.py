"""Every driven step of TRL logs how far the engine's log-probabilities are from those of the training pass."""

import pytest

from ...attempts import EAGER, SGLANG, SGLANG_ARGS, TRANSFORMERS, VLLM, VLLM_ARGS, read_lines, run_warm, write_attempt

TRAIN = """
import sys
from node.attempt import exit_code
from trainers.trl.driver.train import train
sys.exit(exit_code(train))
"""
CONTINUOUS = {
    "use_transformers_continuous_batching": True,
    "transformers_continuous_batching_config": {"max_memory_percent": 0.02},
}
ENGINES = {
    "transformers": (TRANSFORMERS, {}),
    "transformers, continuous batching": (TRANSFORMERS, CONTINUOUS),
    "vllm": (VLLM, VLLM_ARGS),
    "sglang": (SGLANG, SGLANG_ARGS),
}
# An engine that keeps the weights that it has.
WITHOUT_SYNC = """
from trl.generation.vllm_generation import VLLMGeneration
from trainers.trl.driver import engines
engines.sync_through_reload = lambda: setattr(VLLMGeneration, "sync_weights", lambda generation: None)
"""


def steps_of(attempt, python, before=""):
    done = run_warm(python, "-c", before + TRAIN, attempt, **EAGER)
    assert done.returncode == 0, done.stderr
    return [line["scalars"] for line in read_lines(attempt.parent / "metrics.jsonl")], done.stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_each_step_has_the_mismatch_of_engine_and_trainer(engine, stack_python, made_inputs, tmp_path):
    """In float32 on one machine both sides agree to rounding, with a temperature too."""
    stack, settings = ENGINES[engine]
    attempt = write_attempt(
        tmp_path / "near-s0", made_inputs, **settings, max_steps=3, save_strategy="no", temperature=0.7
    )
    steps, _ = steps_of(attempt, stack_python(stack))
    assert len(steps) == 3
    for scalars in steps:
        assert 0 < scalars["mismatch/abs"] < 1e-3
        assert 0 <= scalars["mismatch/k3"] < 1e-5


def test_an_engine_with_old_weights_is_far_from_the_trainer(stack_python, made_inputs, tmp_path):
    attempt = write_attempt(
        tmp_path / "old-s0", made_inputs, **VLLM_ARGS, max_steps=3, save_strategy="no", learning_rate=1e-2
    )
    (first, *_, last), _ = steps_of(attempt, stack_python(VLLM), WITHOUT_SYNC)
    assert first["mismatch/abs"] < 1e-3 < 0.1 < last["mismatch/abs"]
    assert last["mismatch/k3"] > 0.01


def test_a_filtered_distribution_has_no_mismatch(stack_python, made_inputs, tmp_path):
    attempt = write_attempt(tmp_path / "filtered-s0", made_inputs, max_steps=1, save_strategy="no", top_p=0.9)
    (scalars,), said = steps_of(attempt, stack_python(TRANSFORMERS))
    assert not any(name.startswith("mismatch/") for name in scalars)
    assert "mismatch/* are not logged: top_p is 0.9" in said
