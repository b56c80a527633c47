"""Hands new weights to a vLLM server through a file where vLLM's own way needs NCCL: on a CPU. Loaded by its worker.

vLLM's server takes a way of ours as it takes its own (`--weight-transfer-config`); its endpoints and its reload stay as
they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from engines.vllm.cpu import repack_tied_output_layers
from engines.vllm.server import TRANSFER


@dataclass
class _Init(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing is agreed upon."""


@dataclass
class _Update(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Where the weights lie."""

    path: str


class FileTransfer(WeightTransferEngine):  # type: ignore[misc]
    """Reads all weights from a file, and packs them for the CPU's kernels again."""

    init_info_cls, update_info_cls = _Init, _Update

    def init_transfer_engine(self, init_info: _Init) -> None:
        """Nothing: each update says where its file is."""

    def start_weight_update(self) -> None:
        """Unpack the model's layers as they are loaded."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Take new weights; vLLM's own would wait for a GPU afterwards."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: _Update) -> None:
        """Load them."""
        with torch.no_grad():
            self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        """Pack the layers again."""
        finalize_layerwise_reload(self.model, self.model_config)
        repack_tied_output_layers(self.model)

    def shutdown(self) -> None:
        """Nothing is held."""


WeightTransferEngineFactory.register_engine(TRANSFER, FileTransfer)


class Registered:
    """A worker's extension that adds nothing: for its sake vLLM's worker loads this module before the model."""
