"""SGLang is told of sampling what TRL tells its own engines: no term is left to an engine's own default."""

import ast
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest

from common.errors import UserError
from trainers.trl.driver.engines import SglangRollout, sampling

from ...attempts import SGLANG

# TRL's words for vLLM and for transformers, as SGLang's.
AS_SGLANG = {"max_tokens": "max_new_tokens", "eos_token_id": "stop_token_ids"}
# No terms of sampling: how many and what comes back, padding, a cache's class, an image's token. vLLM's and SGLang's
# requests sample; transformers' must be told to.
OTHER = {"n", "logprobs", "do_sample", "pad_token_id", "bos_token_id", "cache_implementation"}
DEFAULTS = {
    "max_completion_length": 24, "temperature": 0.9, "top_p": 0.8, "top_k": 0, "min_p": None, "repetition_penalty": 1.1,
    "generation_kwargs": None,
}  # fmt: skip


def told(**changes):
    return sampling(SimpleNamespace(**{**DEFAULTS, **changes}), 7)


def test_what_trl_tells_its_engines_sglang_is_told(stack_python):
    """By TRL's own source: a release with another term fails here."""
    (trl,) = stack_python(SGLANG).parents[1].glob("lib/python3.*/site-packages/trl")
    for file, least in (("generation/vllm_generation.py", "max_tokens"), ("trainer/grpo_trainer.py", "max_new_tokens")):
        made = [
            {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
            for node in ast.walk(ast.parse((trl / file).read_text(encoding="utf-8")))
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
            if [ast.unparse(one) for one in node.targets] == ["generation_kwargs"]
        ]
        words = [one for one in made if least in one]
        assert words, file
        for one in words:
            # transformers alone is told the token that ends a completion: the others read it from the model, too.
            assert {AS_SGLANG.get(word, word) for word in one - OTHER} | {"stop_token_ids"} == set(told()), file


def test_the_values_are_the_configurations():
    """0 and None are "all" to TRL's engines, also in generation_kwargs, and no numbers that SGLang takes."""
    values = {"max_new_tokens": 24, "temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.1, "stop_token_ids": [7]}
    assert told() == {**values, "top_k": -1, "min_p": 0.0}
    assert told(top_k=20, min_p=0.1) == {**values, "top_k": 20, "min_p": 0.1}
    given = told(generation_kwargs={"top_k": 0, "ignore_eos": True})
    assert given["top_k"] == -1 and given["ignore_eos"] is True
    with pytest.raises(UserError, match=r"generation_kwargs\.min_tokens is no sampling parameter of SGLang; allowed: "):
        told(generation_kwargs={"min_tokens": 3})


def test_an_engine_that_sleeps_gets_its_weights_before_each_generation(monkeypatch):
    """What the memory saver gives back is empty when it is there again."""
    done = []

    class Engine:
        sleeps = True

        def __getattr__(self, name):
            answer = SimpleNamespace(token_ids=[[1]], log_probs=lambda: [[0.0]], shortened=lambda most: 0)
            return lambda *given: done.append(name) or answer

    profiling = ModuleType("trl.extras.profiling")
    profiling.profiling_context = lambda trainer, name: nullcontext()
    monkeypatch.setitem(sys.modules, "trl.extras.profiling", profiling)
    trainer = SimpleNamespace(
        _tokenize_prompts=lambda prompts: [[[5]]],
        state=SimpleNamespace(global_step=3),
        accelerator=SimpleNamespace(unwrap_model=lambda model: SimpleNamespace(named_parameters=list)),
        model=None,
    )
    rollout = SglangRollout(Engine(), {"max_new_tokens": 8})
    for _ in range(2):  # of the same step, as an evaluation would be
        rollout(["why?"], trainer)
    assert done == ["update_weights", "generate", "sleep", "wake", "update_weights", "generate", "sleep"]
