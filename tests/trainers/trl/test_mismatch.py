"""A step has the distance of the engine's log-probabilities from the trainer's, and one boundary of `generate`."""

import json
from types import SimpleNamespace

from engines.reported import TERMS
from trainers.trl.driver.timers import log_mismatch

from ...attempts import (
    EAGER,
    TRAIN,
    TRANSFORMERS,
    VLLM,
    VLLM_ARGS,
    read_lines,
    reported_terms,
    run_warm,
    write_attempt,
)
from .test_trl_grpo import COMMON, PREPARE, check_tree

CONTINUOUS = {
    "use_transformers_continuous_batching": True,
    "transformers_continuous_batching_config": {"max_memory_percent": 0.02},
}
# In the first step it takes a second until it has token ids, and two while its log-probabilities are read; after the
# second it keeps the weights that it has.
SLOW_AND_FORGETFUL = """
import time
from trl.generation import vllm_generation
from vllm import LLM
from trainers.trl.driver import engines
waits = [2, 1]
generate, extract = LLM.generate, vllm_generation.extract_logprobs
def later(function, *given, **named):
    time.sleep(waits.pop() if waits else 0)
    return function(*given, **named)
LLM.generate = lambda *given, **named: later(generate, *given, **named)
vllm_generation.extract_logprobs = lambda outputs: later(extract, outputs)
def sync_twice(through_reload=engines.sync_through_reload):
    through_reload()
    sync, syncs = vllm_generation.VLLMGeneration.sync_weights, [1, 2]
    vllm_generation.VLLMGeneration.sync_weights = lambda generation: syncs and (syncs.pop(), sync(generation))
engines.sync_through_reload = sync_twice
"""


def trained(python, attempt, before="", **changes):
    done = run_warm(python, "-c", before + TRAIN, attempt, **changes)
    assert done.returncode == 0, done.stderr
    return read_lines(attempt.parent / "metrics.jsonl")


def check_near(scalars):
    """In float32 on one machine both sides agree to rounding, with a temperature too."""
    assert 0 < scalars["mismatch/abs"] < 1e-3
    assert 0 <= scalars["mismatch/k3"] < 1e-5


def test_vllm_is_near_the_trainer_until_it_keeps_old_weights(stack_python, made_inputs, tmp_path):
    attempt = write_attempt(
        tmp_path / "vllm-s0", made_inputs, **VLLM_ARGS, max_steps=4, save_strategy="no", learning_rate=1e-2
    )
    lines = trained(stack_python(VLLM), attempt, SLOW_AND_FORGETFUL, **EAGER)
    for line in lines:
        check_tree(line["phases"])
        assert set(line["phases"]) == COMMON | {f"{PREPARE}/{name}" for name in ("sync_weights", "extract")}
    # Neither contains the other: both are parts of prepare_inputs, whose parts sum to no more than it.
    slow = lines[0]["phases"]
    assert slow[f"{PREPARE}/generate"] >= 1 and slow[f"{PREPARE}/extract"] >= 2
    first, second, third, fourth = (line["scalars"] for line in lines)
    check_near(first)
    check_near(second)
    assert third["mismatch/abs"] > 0.1 and third["mismatch/k3"] > 0.01 and fourth["mismatch/abs"] > 0.1

    done = json.loads((attempt.parent / "done.json").read_text())
    terms = reported_terms(done)
    assert set(terms) == set(TERMS) and (terms["CUDA graphs"], terms["attention kernel"]) == ("off", "CPU_ATTN")
    assert terms["KV cache in tokens"] > 10_000 and terms["sampling seed"] == "fixed"
    assert done["resolved"]["engine"]["dtype"] == "float32" and "vllm" in done["versions"]
    assert done["hardware"]["threads"] == 2


def test_transformers_with_continuous_batching_is_near_itself(stack_python, made_inputs, tmp_path):
    attempt = write_attempt(tmp_path / "near-s0", made_inputs, **CONTINUOUS, max_steps=2, save_strategy="no")
    lines = trained(stack_python(TRANSFORMERS), attempt)
    assert len(lines) == 2
    for line in lines:
        check_near(line["scalars"])


def test_a_filtered_distribution_has_no_mismatch(capsys):
    """Nothing of the trainer is replaced, and no step asks for it."""
    log_mismatch(SimpleNamespace(args=SimpleNamespace(top_p=0.9)), None)
    assert "mismatch/* are not logged: top_p is 0.9" in capsys.readouterr().out
