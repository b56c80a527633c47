"""Corrects the worker processes of `swift rollout`, and transfers new weights without NCCL.

Source: ms-swift 4.6.0 pipelines/infer/rollout.py and rlhf_trainers/vllm_client.py. On a CPU weights go through the
store of the trainer's and server's process group; endpoints, buckets and their order are swift's own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from swift.pipelines.infer import rollout

from common.retry import retry_io
from engines.vllm.colocate import engine_settings
from engines.vllm.cpu import is_cpu_platform, repack_tied_output_layers
from node.records import write_json
from trainers.swift.driver.colocate import change_engine_args
from trainers.swift.driver.pipeline import encode_with_chat_template

WORKERS = ("llm_worker", "llm_worker_entry")
"""swift's functions for a worker process, with vLLM's engine and with its asynchronous one."""


def run(name: str, settings_file: Path, arguments: Any, rank: int, *others: Any) -> None:
    """Run one of swift's workers with the run's seed plus its rank (swift's own seed is random).

    Worker 0 writes its engine's settings to `settings_file`.
    """
    rollout.get_seed = lambda: int(arguments.seed) + rank
    build = rollout.SwiftRolloutDeploy.get_infer_engine

    def built(given: Any, *args: Any, **kwargs: Any) -> Any:
        encode_with_chat_template(type(kwargs["template"]))  # turns are tokens here too
        engine = build(given, *args, **kwargs)
        if rank == 0:
            final = engine_settings(engine.engine, str(given.torch_dtype).removeprefix("torch."))
            final |= {"adapter_only_sync": bool(given.vllm_enable_lora)}
            retry_io(lambda: write_json(settings_file, final), "the attempt's files")
        return engine

    rollout.SwiftRolloutDeploy.get_infer_engine = staticmethod(built)
    rollout.logger = _Fatal(rollout.logger)
    if is_cpu_platform():
        # vLLM's core in its own process would compete for these CPUs.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # swift's own extension of vLLM's worker would need NCCL.
        extension = f"{__name__}.{OnCpu.__name__}"
        change_engine_args(lambda engine_args: setattr(engine_args, "worker_extension_cls", extension))
    getattr(rollout, name)(arguments, rank, *others)


class _Fatal(logging.LoggerAdapter[logging.Logger]):
    """Ends a worker after a failed call: swift would only log it and continue with the old weights."""

    def error(self, *args: Any, **kwargs: Any) -> None:
        super().error(*args, **kwargs)
        os._exit(1)


class StoreCommunicator:
    """Replaces vLLM's PyNcclCommunicator: tensors go through the store of the group."""

    def __init__(self, group: Any, device: Any) -> None:
        self.group, self.rank, self.device = group, group.rank, torch.device("cpu")

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Send or receive a tensor. A barrier follows, so the sender can delete the tensor before."""
        while self.rank == src and self.group.entries:
            self.group.store.delete_key(self.group.entries.popleft()[0])
        found = self.group.broadcast(tensor, src)
        if self.rank != src:
            tensor.copy_(found)


class OnCpu(rollout.WeightSyncWorkerExtension):  # type: ignore[misc]
    """swift's extension of vLLM's worker that unpacks the model's layers before new weights and packs them after."""

    reloading = False

    def init_communicator(self, host: str, port: int, world_size: int) -> None:
        """Connect to the trainer without NCCL."""
        rollout.PyNcclCommunicator = StoreCommunicator
        rollout.synchronize = lambda *device: None
        super().init_communicator(host, port, world_size)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update_flattened_params(self, metadatas: list[dict[str, Any]]) -> None:
        """Receive a bucket of weights."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if not self.reloading:
            self.reloading = True
            initialize_layerwise_reload(self.model_runner.model)
        super().update_flattened_params(metadatas)

    def process_weights_after_loading(self) -> None:
        """Pack all layers after the last bucket."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        self.reloading = False
        finalize_layerwise_reload(self.model_runner.model, self.model_runner.model_config)
        repack_tied_output_layers(self.model_runner.model)


def send_through_store() -> None:
    """Make the trainer's client send weights to `OnCpu`."""
    from swift.rlhf_trainers import vllm_client

    def send(communicator: Any, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            communicator.broadcast(tensor.detach(), src=communicator.rank)

    vllm_client.PyNcclCommunicator = StoreCommunicator
    vllm_client._broadcast_tensors_for_vllm_weight_sync = send
