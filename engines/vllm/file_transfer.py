"""Sends new weights to a vLLM server through a file on a CPU, where NCCL is not available. vLLM's worker loads it.

`--weight-transfer-config` of vLLM's server selects it; the server's endpoints and its reload are unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file

from engines.vllm import hooks
from engines.vllm.cpu import repack_tied_output_layers
from engines.vllm.server import TRANSFER

_InitInfo: Any = hooks.TRANSFER_INIT.get()
_UpdateInfo: Any = hooks.TRANSFER_UPDATE.get()
_Engine: Any = hooks.TRANSFER_ENGINE.get()


@dataclass
class _Init(_InitInfo):  # type: ignore[misc]
    """Nothing to initialize."""


@dataclass
class _Update(_UpdateInfo):  # type: ignore[misc]
    """The path of the weights."""

    path: str


class FileTransfer(_Engine):  # type: ignore[misc]
    """Reads all weights from a file, and packs them for the CPU kernels."""

    init_info_cls, update_info_cls = _Init, _Update

    def init_transfer_engine(self, init_info: _Init) -> None:
        """Nothing to do: each update has the path of its file."""

    def start_weight_update(self) -> None:
        """Start to unpack the model's layers."""
        hooks.START_RELOAD.get()(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load new weights; vLLM's own method would then wait for a GPU."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: _Update) -> None:
        with torch.no_grad():
            self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        """Pack the layers again."""
        hooks.FINISH_RELOAD.get()(self.model, self.model_config)
        repack_tied_output_layers(self.model)

    def shutdown(self) -> None:
        """Nothing to release."""


hooks.REGISTER_TRANSFER.get()(TRANSFER, FileTransfer)


class Registered:
    """An empty worker extension, which makes vLLM's worker import this module before the model."""
