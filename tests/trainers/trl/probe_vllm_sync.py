"""Run in a vLLM stack: does vLLM generate with the policy's weights, after they have changed and been synced?

Prints one JSON line: the largest difference between vLLM's and transformers' log-probabilities of the same tokens
before the change, after it without a sync, and after the sync; and whether threads survived the engine.
"""

import json
import os
import sys
from pathlib import Path

from node.hardware import pin_cpus, set_environment


def main(model: str, out: str, seed: str) -> None:
    affinity = pin_cpus(2)
    set_environment(os.environ, affinity, {"fingerprint": "f" * 64, "attempt_dir": out}, "probe")
    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.generation.vllm_generation import VLLMGeneration

    from engines.vllm import colocate as vllm_colocate
    from engines.vllm import cpu as vllm_cpu

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model)
    vllm_colocate.pass_seed_and_dtype(int(seed), "float32")
    vllm_cpu.sync_through_reload()
    with vllm_cpu.keep_threads(2):
        engine = VLLMGeneration(
            policy, Accelerator(cpu=True), tokenizer, max_model_length=96, max_num_seqs=8, max_completion_length=24
        )
    torch_seed = torch.initial_seed()  # of the generator that vLLM's CPU sampler draws from
    settings = vllm_colocate.engine_settings(engine.llm.llm_engine, "float32")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 3 + 4?"}], add_generation_prompt=True, return_dict=False
    )

    first = engine.generate([prompt] * 8, None, 8)[1]

    def difference() -> float:
        _, made, log_probs, _ = engine.generate([prompt] * 4, None, 4)
        worst = 0.0
        for ids, said in zip(made, log_probs, strict=True):
            with torch.no_grad():
                logits = policy(torch.tensor([prompt + list(ids)])).logits[0, len(prompt) - 1 : -1]
            own = logits.log_softmax(-1)[range(len(ids)), list(ids)]
            worst = max(worst, (own - torch.tensor([one[0] for one in said])).abs().max().item())
        return worst

    differences = [difference()]
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        differences.append(difference())
        engine.sync_weights()
        differences.append(difference())
    told = {
        "differences": differences,
        "first": [list(ids) for ids in first],
        "threads": torch.get_num_threads(),
        "torch_seed": torch_seed,
        "seed": settings["seed"],
        "dtype": settings["dtype"],
    }
    torch.set_num_threads(1)
    told["threads_can_be_set"] = torch.get_num_threads() == 1
    Path(out, "probe.json").write_text(json.dumps(told))


main(*sys.argv[1:])
