"""Replaces packages that SGLang imports and this stack lacks: CUDA's `sgl_kernel`, torchvision, and jsonschema.

SGLang 0.5.23 also imports them on a CPU. For text it calls only one of their functions, which assigns cache slots; all
other names raise when called. The real torchvision needs CUDA's torch. Only its server's chats need jsonschema: the
stack's lock would be another one with it, and all finished runs with SGLang would be trained again.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from common.errors import UserError

VERSION = "rolloutbench's stand-in"
"""The version of the stand-ins."""

_OF_CUDA_KERNELS = (
    "merge_state_v2",
    "copy_all_layer_kv_cache_cpu",
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "build_tree_kernel_efficient_cpu",
    "verify_tree_greedy_cpu",
)


def install() -> None:
    """Load stand-ins for missing packages, before SGLang is imported; also needed in SGLang's own processes."""
    if importlib.util.find_spec("sgl_kernel") is None:
        kernels = _module("sgl_kernel", _OF_CUDA_KERNELS)
        kernels.assign_req_to_token_pool_cpu = assign_slots  # type: ignore[attr-defined]
    if importlib.util.find_spec("jsonschema") is None:
        _module("jsonschema", ("Draft202012Validator", "SchemaError"))
    if importlib.util.find_spec("torchvision") is None:
        # transformers checks for torchvision, and must not find the stand-in.
        processors = importlib.import_module("transformers.models.auto.image_processing_auto")
        sys.modules["transformers"].AutoImageProcessor = processors.AutoImageProcessor  # type: ignore[attr-defined]
        _module("torchvision", ())
        transforms = _module("torchvision.transforms", ("InterpolationMode",))
        transforms.functional = _module("torchvision.transforms.functional", ("InterpolationMode",))  # type: ignore[attr-defined]


def installed() -> dict[str, str]:
    """The installed stand-ins, by the name of the replaced package."""
    return {name: VERSION for name in ("sgl_kernel", "torchvision", "jsonschema") if _is_ours(sys.modules.get(name))}


def assign_slots(rows: Any, table: Any, starts: Any, ends: Any, slots: Any, width: int) -> None:
    """Write each row's part of `slots` into `table[row, start:end]`, in order.

    `table` has the cache slots, shape (rows, `width`); `slots` has one entry per token, the others one per row.
    """
    taken = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[taken : taken + end - start]
        taken += end - start


def _module(name: str, absent: Iterable[str]) -> ModuleType:
    module = ModuleType(name, VERSION)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__version__ = VERSION  # type: ignore[attr-defined]
    for attribute in absent:
        setattr(module, attribute, _absent(f"{name}.{attribute}"))
    sys.modules[name] = module
    return module


def _absent(name: str) -> Callable[..., Any]:
    def absent(*_: Any, **__: Any) -> Any:
        raise UserError(
            f"SGLang calls {name}, of which this stack has a stand-in only; remove the option that needs it, or run "
            "this arm on a GPU"
        )

    return absent


def _is_ours(module: ModuleType | None) -> bool:
    return getattr(module, "__version__", None) == VERSION
