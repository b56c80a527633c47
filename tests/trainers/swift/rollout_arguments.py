"""Writes what ms-swift makes of settings for GPUs, as far as none is needed: `rollout_arguments.py REQUEST OUT`.

A server's arguments are of swift's own parser, and an adapter and conversations go by its own client and endpoints.
REQUEST has a run's settings with vLLM on this CPU, which are resolved beside another program at torchrun's own port.
"""

import json
import os
import socket
import sys
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from types import MethodType, SimpleNamespace

REQUEST, OUT = map(Path, sys.argv[1:])
TORCHRUNS_OWN = 29500
MODEL = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 80}
ON_GPUS = {"bf16": True, "vllm_tensor_parallel_size": 2, "vllm_data_parallel_size": 2, "vllm_max_num_seqs": 8}
LORA = {"tuner_type": "lora", "lora_rank": 32, "vllm_enable_lora": True}


def engine_kwargs(rollout, asked):
    """What swift would build a server's engine with."""
    told = {}
    rollout.GRPOVllmEngine = lambda **kwargs: told.update(kwargs)
    rollout.SwiftRolloutDeploy.get_infer_engine(asked, template=None)
    return {name: value for name, value in told.items() if isinstance(value, bool | int | float | dict)}


def gpus_of_engines(rollout, asked):
    """Which of a server's GPUs each of its engines sees."""
    found = []
    for rank in range(asked.vllm_data_parallel_size):
        os.environ["CUDA_VISIBLE_DEVICES"] = "4,5,6,7"
        rollout._set_visible_devices_for_dp_rank(rank, asked.vllm_tensor_parallel_size)
        found.append(os.environ.pop("CUDA_VISIBLE_DEVICES"))
    return found


def client_and_engines(rollout, asked):
    """swift's client of a server's endpoints, without NCCL, and the ends of its engines' pipes."""
    from fastapi import FastAPI
    from starlette.testclient import TestClient
    from swift.rlhf_trainers import vllm_client

    ours, engines = zip(*(Pipe() for _ in range(asked.vllm_data_parallel_size)), strict=True)
    server = rollout.SwiftRolloutDeploy.__new__(rollout.SwiftRolloutDeploy)
    server.args, server.connections, server.num_connections = asked, list(ours), len(ours)
    server.use_async_engine, server.use_gym_env, server.app = False, False, FastAPI()
    server._register_rl_rollout_app()
    client = vllm_client.VLLMClient.__new__(vllm_client.VLLMClient)
    client.num_servers, client.base_urls, client.sessions = 1, [""], [TestClient(server.app)]
    client.pynccl_comms = [SimpleNamespace(group=SimpleNamespace(barrier=lambda: None))]
    vllm_client._broadcast_tensors_for_vllm_weight_sync = lambda communicator, tensors: None
    return client, list(engines)


def adapters(client, engines):
    """A LoRA adapter as the workers of each engine get it: vLLM's core lies in a process between them."""
    import torch
    from peft import LoraConfig
    from swift.rlhf_trainers.utils import FlattenedTensorBucket, FlattenedTensorMetadata
    from vllm.lora.peft_helper import PEFTHelper
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    config = LoraConfig(r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    bucket = FlattenedTensorBucket(named_tensors=[("a.lora_A.weight", torch.ones(2, 3)), ("b", torch.ones(4))])
    client.update_adapter_flattened_param(config, bucket.get_metadata(), bucket.get_flattened_tensor())
    found = []
    for engine in engines:
        call = engine.recv()["kwargs"]
        sent = MsgpackEncoder().encode((0, 1, "collective_rpc", (call["method"], None, call["args"], None)))
        *_, (method, _, (peft, metadatas), _) = MsgpackDecoder().decode(sent)
        helper = PEFTHelper.from_dict(peft)
        tensors = {one.name: list(one.shape) for one in (FlattenedTensorMetadata(**one) for one in metadatas)}
        found.append([method, helper.r, helper.vllm_lora_scaling_factor, sorted(helper.target_modules), tensors])
    return found


def conversations(client, engines, number):
    """Which of so many each engine gets, and the answers as the trainer has them."""
    from swift.infer_engine.protocol import RolloutInferRequest

    given = [[] for _ in engines]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}

    def answer(at):
        asked = [one if isinstance(one, dict) else vars(one) for one in engines[at].recv()["kwargs"]["infer_requests"]]
        given[at] = [one["messages"][-1]["content"] for one in asked]
        answers = [{"model": "m", "choices": [], "usage": usage, "id": text} for text in given[at]]
        engines[at].send([{"response": one} for one in answers])

    threads = [Thread(target=answer, args=(at,)) for at in range(len(engines))]
    for thread in threads:
        thread.start()
    made = [RolloutInferRequest(messages=[{"role": "user", "content": str(at)}]) for at in range(number)]
    outputs = client.infer(made, use_tqdm=False)
    for thread in threads:
        thread.join()
    return given, [one.response.id for one in outputs]


def seeds(rank, seed, step):
    """Of a request in two generations of a process, two of which have an engine together."""
    from swift.rlhf_trainers.rollout_mixin import RolloutTrainerMixin

    from trainers.swift.driver.colocate import vary_seeds

    trainer = SimpleNamespace(
        request_config=SimpleNamespace(seed=None),
        args=SimpleNamespace(vllm_mode="colocate", per_device_train_batch_size=2, gradient_accumulation_steps=2),
        vllm_tensor_parallel_size=2,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(process_index=rank),
        state=SimpleNamespace(global_step=step),
    )
    trainer._get_request_config = MethodType(RolloutTrainerMixin._get_request_config, trainer)
    vary_seeds(trainer, seed)
    return [trainer._get_request_config().seed for _ in range(2)]


def main():
    from trainers.swift.driver import arguments

    arguments.set_environment(OUT.parent)
    (OUT.parent / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    request = json.loads(REQUEST.read_text(encoding="utf-8"))
    settings = request["trainer_args"] | ON_GPUS | LORA | {"vllm_mode": "server"}
    asked = arguments.server_arguments(settings, OUT.parent, {"host": "127.0.0.1", "port": 0, "seed": 7})
    from swift.pipelines.infer import rollout

    client, engines = client_and_engines(rollout, asked)
    told = {
        "adapters": adapters(client, engines),
        "conversations": [conversations(client, engines, number) for number in (3, 1)],
        "server": client.get_engine_type() | client.sessions[0].get("/get_world_size/").json(),
        "engine": engine_kwargs(rollout, asked),
        "gpus": gpus_of_engines(rollout, asked),
        "seeds": [seeds(*of) for of in ((2, 0, 5), (3, 0, 5), (0, 0, 5), (2, 1, 5), (2, 0, 6))],
    }
    with socket.socket() as other:
        with suppress(OSError):  # one is there
            other.bind(("127.0.0.1", TORCHRUNS_OWN))
            other.listen()
        told["resolved"] = arguments.resolved(request["trainer_args"], request["rewards"])[1]["use_vllm"]
    OUT.write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
