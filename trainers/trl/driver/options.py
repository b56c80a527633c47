"""Reads what a run asks of TRL beside GRPOConfig: SGLang, the options of a server, and LoRA in ModelConfig's words."""

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
SERVER_ARGS = "vllm_server_args"
"""Our words among `trainer_args`: GRPOConfig has none for SGLang or a server's options, nor for LoRA."""


def divided(trainer_args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """GRPOConfig's own fields, and SGLang's settings without what stands before them."""
    of_sglang = {name: value for name, value in trainer_args.items() if name == SWITCH or name.startswith(OPTION)}
    ours = {*of_sglang, SERVER_ARGS, *filter(is_of_lora, trainer_args)}
    return {name: value for name, value in trainer_args.items() if name not in ours}, {
        name.removeprefix(OPTION): value for name, value in of_sglang.items() if name != SWITCH
    }


def is_of_lora(name: str) -> bool:
    """Whether a setting is of the adapter, and none of GRPOConfig's."""
    return name.startswith(_OF_LORA)


def lora_words(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """All that an adapter is made with, TRL's defaults included; nothing where the whole model is trained.

    `UserError` for an unknown word, and where the stack has no peft.
    """
    from trl import ModelConfig

    given = {name: value for name, value in trainer_args.items() if is_of_lora(name)}
    if not given.get(LORA):
        return {}
    known = {field.name for field in dataclasses.fields(ModelConfig) if is_of_lora(field.name)}
    for name in given:
        if name not in known:
            version = importlib.metadata.version("trl")
            near = did_you_mean(name, sorted(known))
            raise UserError(f"trainer_args.{name} is no word for an adapter of TRL {version}'s ModelConfig{near}")
    try:
        importlib.metadata.version("peft")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"{LORA} is true, and this stack has no peft; take the stack trl-vllm or trl-transformers, or on a CPU "
            "trl-lora-vllm-cpu or trl-lora-transformers-cpu"
        ) from None
    try:
        config = ModelConfig(**given)
    except (ValueError, TypeError) as error:
        raise UserError(f"TRL refuses the adapter: {one_line(error)}") from error
    return {name: getattr(config, name) for name in sorted(known)}


def peft_config(trainer_args: Mapping[str, Any]) -> Any:
    """peft's configuration of the adapter; None where the whole model is trained."""
    from trl import ModelConfig, get_peft_config

    return get_peft_config(ModelConfig(**lora_words(trainer_args)))
