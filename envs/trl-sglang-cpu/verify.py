"""Checks the built stack trl-sglang-cpu; run by `python -m workflow.stacks build`."""

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _probes import COMMON, TRACKED, TRL
from _verify import Probe, main

_PROMPTS = [[7, 3, 9, 11], [5, 20], [33, 2, 2, 17, 40, 8], [61]]
_TOKENS = 16


def greedy_tokens_agree() -> Any:
    """Of each prompt, whether SGLang's greedy tokens are transformers'; before and after it is given new weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from engines.sglang.client import Sglang

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        engine = Sglang(Path(folder), "float32", 0, {"max_total_tokens": 1024}, Path(folder) / "server.log")
        try:
            before = _equal(engine, model)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            engine.update_weights(model.named_parameters())
            return before + _equal(engine, model)
        finally:
            engine.close()


def _equal(engine: Any, model: Any) -> list[bool]:
    import torch

    answer = engine.generate(_PROMPTS, {"temperature": 0.0, "max_new_tokens": _TOKENS, "ignore_eos": True})
    told = []
    for prompt in _PROMPTS:
        ids = torch.tensor([prompt])
        told.append(model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=_TOKENS, do_sample=False))
    return [tokens == ids[0, -_TOKENS:].tolist() for tokens, ids in zip(answer.token_ids, told, strict=True)]


# It starts the engine with our stand-ins for packages that are not there.
SGLANG = [Probe("sglang's greedy tokens are transformers'", "sglang", [True] * 2 * len(_PROMPTS), greedy_tokens_agree)]

if __name__ == "__main__":
    sys.exit(main([*COMMON, *TRACKED, *TRL, *SGLANG]))
