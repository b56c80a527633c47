"""Gives new weights to a `swift rollout` by swift's own client, and writes how far its log-probabilities are off:
`rollout_client.py MODEL OUT`, with the job's variables of a trainer beside it.

A line for the weights that it has loaded, and one for each time that it got others.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

MODEL, OUT = map(Path, sys.argv[1:])
TIMES = 2


def largest_difference(policy: Any, outputs: Any) -> float:
    """Nats between what the server says of its tokens and what the policy does."""
    import torch

    worst = 0.0
    for output in outputs:
        (choice,) = output.response.choices
        prompt = output.response.prompt_token_ids
        with torch.no_grad():
            logits = policy(torch.tensor([prompt + choice.token_ids])).logits[0]
        own = torch.log_softmax(logits, -1)
        for at, (token, said) in enumerate(zip(choice.token_ids, choice.logprobs["content"], strict=True)):
            worst = max(worst, abs(own[len(prompt) - 1 + at, token].item() - said["logprob"]))
    return worst


def main() -> None:
    from node.engine_server import server_address
    from trainers.swift.driver import arguments, rollout_worker

    arguments.set_environment(OUT.parent)
    rollout_worker.send_through_store()
    import torch
    from swift.infer_engine.protocol import RequestConfig, RolloutInferRequest
    from swift.rlhf_trainers.utils import FlattenedTensorBucket
    from swift.rlhf_trainers.vllm_client import VLLMClient
    from transformers import AutoModelForCausalLM

    url, _, port = server_address()
    client = VLLMClient(base_urls=[url], group_ports=[port])
    client.close_communicator()
    client.init_communicator(device="cpu")
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    config = RequestConfig(n=1, max_tokens=12, temperature=1.0, return_details=True, logprobs=True)
    for time in range(1 + TIMES):
        if time:
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))
            weights = [(name, one.detach()) for name, one in policy.named_parameters()]
            for part in (weights[: len(weights) // 2], weights[len(weights) // 2 :]):
                bucket = FlattenedTensorBucket(named_tensors=part)
                client.update_flattened_params(bucket.get_metadata(), bucket.get_flattened_tensor())
            client.process_weights_after_loading()
            client.reset_prefix_cache()
        asked = [{"role": "user", "content": f"What is {time} + 2?"}]
        requests = [asdict(RolloutInferRequest(messages=asked, uuid=str(at))) for at in range(4)]
        outputs = client.infer(requests, asdict(config), use_tqdm=False)
        line = {"off": largest_difference(policy, outputs), "texts": [str(one.response.choices[0]) for one in outputs]}
        with OUT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("WANDB_MODE", "offline")
    main()
