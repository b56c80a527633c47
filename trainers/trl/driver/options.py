"""Reads a run's settings that GRPOConfig does not have: SGLang's, a server's options, and LoRA's in ModelConfig."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from common.errors import UserError
from common.messages import did_you_mean
from node.exit_codes import one_line

LORA = "use_peft"
_OF_LORA = (LORA, "lora_", "use_rslora", "use_dora")
SWITCH, OPTION = "use_sglang", "sglang_"
OF_DRIVER = frozenset({"mem_fraction_static", "enable_memory_saver", "max_total_tokens"})
"""What the driver itself gives SGLang (trainers/trl/trainer.py)."""
SERVER_ARGS = "vllm_server_args"
"""The project's own names in `trainer_args`; GRPOConfig has no fields for SGLang or a server's options."""


def split_settings(trainer_args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """GRPOConfig's fields, and SGLang's settings without their prefix."""
    trl_args: dict[str, Any] = {}
    sglang: dict[str, Any] = {}
    for name, value in trainer_args.items():
        if name.startswith(OPTION):
            sglang[name.removeprefix(OPTION)] = value
        elif name not in (SWITCH, SERVER_ARGS) and not is_lora_setting(name):
            trl_args[name] = value
    return trl_args, sglang


def is_lora_setting(name: str) -> bool:
    """Whether a setting belongs to the adapter, not to GRPOConfig."""
    return name.startswith(_OF_LORA)


def lora_settings(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of an adapter, with TRL's defaults; empty if the whole model is trained.

    `UserError` for an unknown setting, and if the stack has no peft.
    """
    from trl import ModelConfig

    given = {name: value for name, value in trainer_args.items() if is_lora_setting(name)}
    if not given.get(LORA):
        return {}
    known = {field.name for field in dataclasses.fields(ModelConfig) if is_lora_setting(field.name)}
    for name in given:
        if name not in known:
            version = importlib.metadata.version("trl")
            near = did_you_mean(name, sorted(known))
            raise UserError(f"trainer_args.{name} is no adapter setting of TRL {version}'s ModelConfig{near}")
    try:
        importlib.metadata.version("peft")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"{LORA} is true, but this stack has no peft; use the stack trl-vllm or trl-transformers, or on a CPU "
            "trl-lora-vllm-cpu or trl-lora-transformers-cpu"
        ) from None
    try:
        config = ModelConfig(**given)
    except (ValueError, TypeError) as error:
        raise UserError(f"TRL refuses the adapter: {one_line(error)}") from error
    return {name: getattr(config, name) for name in sorted(known)}


def peft_config(trainer_args: Mapping[str, Any]) -> Any:
    """peft's configuration of the adapter; None if the whole model is trained."""
    from trl import ModelConfig, get_peft_config

    return get_peft_config(ModelConfig(**lora_settings(trainer_args)))
