"""Every engine's `generate` is what TRL waits for: from handing over prompts to having token ids."""

import pytest

from ...attempts import EAGER, SGLANG, SGLANG_ARGS, VLLM, VLLM_ARGS, read_lines, run_warm, write_attempt
from .test_trl_grpo import PREPARE, check_tree

TRAIN = """
import sys
from node.attempt import exit_code
from trainers.trl.driver.train import train
sys.exit(exit_code(train))
"""
# An engine that sleeps for a second until it has token ids, and for two while its log-probabilities are read.
SLOW_VLLM = """
import time
from trl.generation import vllm_generation
from vllm import LLM
generate, extract = LLM.generate, vllm_generation.extract_logprobs
LLM.generate = lambda *given, **named: (time.sleep(1), generate(*given, **named))[1]
vllm_generation.extract_logprobs = lambda outputs: (time.sleep(2), extract(outputs))[1]
"""
SLOW_SGLANG = """
import time
from engines.sglang.client import Sglang
class Slow(dict):
    def __getitem__(self, name):
        time.sleep(2 / 8)
        return super().__getitem__(name)
ask = Sglang._ask
def slowly(engine, path, **body):
    answer = ask(engine, path, **body)
    if path == "generate":
        time.sleep(1)
        answer = [{**one, "meta_info": Slow(one["meta_info"])} for one in answer]
    return answer
Sglang._ask = slowly
"""


@pytest.mark.parametrize(
    ("stack", "slow", "settings"),
    [(VLLM, SLOW_VLLM, VLLM_ARGS), (SGLANG, SLOW_SGLANG, SGLANG_ARGS)],
    ids=["vllm", "sglang"],
)
def test_generate_ends_when_the_token_ids_are_there(stack, slow, settings, stack_python, made_inputs, tmp_path):
    attempt = write_attempt(tmp_path / "slow-s0", made_inputs, **settings, max_steps=1, save_strategy="no")
    done = run_warm(stack_python(stack), "-c", slow + TRAIN, attempt, **EAGER)
    assert done.returncode == 0, done.stderr
    (line,) = read_lines(attempt.parent / "metrics.jsonl")
    check_tree(line["phases"])
    # Neither contains the other: both are parts of prepare_inputs, whose parts sum to no more than it.
    assert line["phases"][f"{PREPARE}/generate"] >= 1
    assert line["phases"][f"{PREPARE}/extract"] >= 2


def test_responses_that_a_tiny_cache_shortens_are_counted(stack_python, made_inputs, tmp_path):
    """The cache has room for 80 tokens, of which a prompt takes more than 16: no response reaches 64 tokens."""
    cache = {"use_sglang": True, "sglang_max_total_tokens": 80, "max_completion_length": 64}
    attempt = write_attempt(tmp_path / "short-s0", made_inputs, **cache, max_steps=1, save_strategy="no")
    done = run_warm(stack_python(SGLANG), "-c", TRAIN, attempt)
    assert done.returncode == 0, done.stderr
    (line,) = read_lines(attempt.parent / "metrics.jsonl")
    shortened = line["scalars"]["shortened_responses"]
    assert 0 < shortened <= 8 and max(line["samples"]["response_length"]) < 64
    assert f"SGLang shortened {shortened:.0f} of 8 responses: its cache has room for 80 tokens" in done.stdout
