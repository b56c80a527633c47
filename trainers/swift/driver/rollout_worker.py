"""Corrects the worker processes of `swift rollout`, and transfers new weights without NCCL.

Source: ms-swift 4.6.0 pipelines/infer/rollout.py and rlhf_trainers/vllm_client.py. On a CPU weights go through files of
the attempt; endpoints, buckets and their order are swift's own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from common.files import write_json
from common.retry import present, retry_io
from engines.vllm import hooks as vllm_hooks
from engines.vllm.cpu import is_cpu_platform, repack_tied_output_layers
from engines.vllm.settings import engine_settings
from node.hooks import Hook
from trainers.swift import hooks
from trainers.swift.driver import arguments
from trainers.swift.driver.colocate import change_engine_args
from trainers.swift.driver.pipeline import encode_with_chat_template

WORKERS = (hooks.WORKER, hooks.ASYNC_WORKER)
"""swift's functions for a worker process, with vLLM's engine and with its asynchronous one."""
_FILES = "the attempt's files"
_PATIENCE_S = 300.0
"""As in the store that the files replace."""


def run(worker: Hook, settings_file: Path, server: Any, rank: int, *others: Any) -> None:
    """Run one of swift's workers with the server's seed plus its rank (swift's own seed is random).

    `worker` is the row of swift's function, whose name is ours in the server: a process cannot be given the function
    itself by that name. Worker 0 writes its engine's settings to `settings_file`.
    """
    hooks.SEED.replace(lambda: int(server.seed) + rank)
    build = hooks.WORKER_ENGINE.get()

    def built(given: Any, *args: Any, **kwargs: Any) -> Any:
        encode_with_chat_template(type(kwargs["template"]))  # turns are tokens here too
        engine = build(given, *args, **kwargs)
        if rank == 0:
            final = engine_settings(hooks.VLLM_ENGINE.get(engine), str(given.torch_dtype).removeprefix("torch."))
            final |= {"adapter_only_sync": bool(given.vllm_enable_lora)}
            retry_io(lambda: write_json(settings_file, final), _FILES)
        return engine

    hooks.WORKER_ENGINE.replace(staticmethod(built))
    hooks.LOGGER.replace(_Fatal(hooks.LOGGER.get()))
    if is_cpu_platform():
        # vLLM's core in its own process would compete for these CPUs.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # swift's own extension of vLLM's worker would need NCCL.
        extension = f"{__name__}.{OnCpu.__name__}"
        change_engine_args(lambda engine_args: setattr(engine_args, "worker_extension_cls", extension))
    worker.get()(server, rank, *others)


class _Fatal(logging.LoggerAdapter[logging.Logger]):
    """Ends a worker after a failed call: swift would only log it and continue with the old weights."""

    def error(self, *args: Any, **kwargs: Any) -> None:
        super().error(*args, **kwargs)
        os._exit(1)


class FileGroup:
    """Replaces vLLM's StatelessProcessGroup, whose store listens on a port: whoever reaches it runs code in a member.

    Tensors go through files in a folder of the attempt: each receiver has its own, which it deletes.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.rank, self._folder, self._world_size, self._tensors = rank, folder, world_size, 0

    @classmethod
    def create(cls, host: str, port: int, rank: int, world_size: int) -> FileGroup:
        """Join the group of a port, which only names it."""
        folder = Path(os.environ[arguments.WEIGHTS]) / str(port)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(folder, rank, world_size)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Send or receive a tensor."""
        files = [self._folder / f"{self._tensors}-{rank}.safetensors" for rank in range(self._world_size)]
        self._tensors += 1
        mine = files.pop(self.rank)
        if self.rank == src:
            save_file({"": tensor.contiguous()}, mine)
            for file in files:
                os.link(mine, file)
        else:
            _await(mine)
            tensor.copy_(load_file(mine)[""])
        retry_io(lambda: mine.unlink(missing_ok=True), _FILES)

    def barrier(self) -> None:
        """Nothing: the engine loads in the order of the requests, and answers the last one when all is loaded."""


def _await(path: Path) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not present(path):
        if time.monotonic() > until:
            raise TimeoutError(f"new weights: {path} was not written within {_PATIENCE_S:.0f} s")
        time.sleep(0.005)


class FileCommunicator:
    """Replaces vLLM's PyNcclCommunicator: tensors go through the files of the group."""

    def __init__(self, group: FileGroup, device: Any) -> None:
        self.group, self.rank, self.device = group, group.rank, torch.device("cpu")

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        """Send or receive a tensor."""
        self.group.broadcast(tensor, src)


_Extension: Any = hooks.EXTENSION.get()


class OnCpu(_Extension):  # type: ignore[misc]
    """swift's extension of vLLM's worker that unpacks the model's layers before new weights and packs them after."""

    reloading = False

    def init_communicator(self, host: str, port: int, world_size: int) -> None:
        """Connect to the trainer without NCCL."""
        hooks.SERVER_GROUP.replace(FileGroup)
        hooks.SERVER_NCCL.replace(FileCommunicator)
        hooks.SERVER_SYNCHRONIZE.replace(lambda *device: None)
        super().init_communicator(host, port, world_size)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update_flattened_params(self, metadatas: list[dict[str, Any]]) -> None:
        """Receive a bucket of weights."""
        if not self.reloading:
            self.reloading = True
            vllm_hooks.START_RELOAD.get()(vllm_hooks.MODEL.get(self.model_runner))
        super().update_flattened_params(metadatas)

    def process_weights_after_loading(self) -> None:
        """Pack all layers after the last bucket."""
        self.reloading = False
        model = vllm_hooks.MODEL.get(self.model_runner)
        vllm_hooks.FINISH_RELOAD.get()(model, vllm_hooks.MODEL_CONFIG.get(self.model_runner))
        repack_tied_output_layers(model)


def send_through_files() -> None:
    """Make the trainer's client send weights to `OnCpu`."""

    def send(communicator: Any, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            communicator.broadcast(tensor.detach(), src=communicator.rank)

    hooks.CLIENT_GROUP.replace(FileGroup)
    hooks.CLIENT_NCCL.replace(FileCommunicator)
    hooks.BROADCAST.replace(send)
