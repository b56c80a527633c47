"""Turns a run's settings into ms-swift's arguments with swift's own parser, and reports what that refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.dotted import flatten
from common.errors import UserError
from common.files import read_json
from common.retry import retry_io
from node import hf_training
from node.engine_server import uses_server
from node.exit_codes import one_line
from node.hardware import free_port, importing
from trainers.swift import hooks
from trainers.swift.driver.pipeline import with_scheduler

# The same in every run: no ModelScope, and no folder names of swift's own.
_CONSTANT: Mapping[str, Any] = {
    "rlhf_type": "grpo",
    "check_model": False,
    "add_version": False,
    "create_checkpoint_symlink": False,
}
# Settings of a step that TrainingArguments does not have.
_SWIFT_SETTINGS = (
    *("tuner_type", "torch_dtype", "template", "template_backend", "max_length", "truncation_strategy", "data_seed"),
)
# Arguments that a server shares with its trainer, in addition to vLLM's.
_TEMPLATE = ("template", "template_backend", "max_length")
_ADAPTER_ALONE = "vllm_enable_lora"
WEIGHTS = "ROLLOUTBENCH_WEIGHTS"
"""The variable with the folder through which trainer and server exchange weights on a CPU."""
# Settings are resolved without a server.
_NO_ADDRESS: Mapping[str, Any] = {"host": "127.0.0.1", "port": 0, "seed": 0}
_NO_SERVER: Mapping[str, Any] = {"vllm_server_base_url": ["http://127.0.0.1"], "vllm_server_group_port": [0]}
_OF_AN_ADAPTER = ("lora_alpha", "lora_dropout", "target_modules")
# The minimal model for swift's parser, which reads only config.json.
_STAND_IN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 1 << 20}


def owned_settings(attempt: Mapping[str, Any], model: Path, data: Path) -> dict[str, Any]:
    """The arguments that the job sets: the run's inputs, the output folder, and logging of every step."""
    return {**_CONSTANT, **hf_training.owned_settings(attempt), **model_arguments(model), "dataset": [str(data)]}


def model_arguments(model: Path) -> dict[str, Any]:
    """The arguments that name a model, of the trainer and of its server."""
    return {"use_hf": True, "model": str(model), "model_type": _type_of(model)}


def parsed(trainer_args: Mapping[str, Any], owned: Mapping[str, Any]) -> Any:
    """ms-swift's RLHFArguments; `UserError` for an argument that is unknown, set by the job, or refused."""
    with importing():
        kind = hooks.ARGUMENTS.get()

    version = importlib.metadata.version("ms-swift")
    fixed = {name: value for name, value in owned.items() if name != "model_type"}
    hf_training.require_settings(trainer_args, kind, fixed, f"no argument of ms-swift {version}'s rlhf")
    return parse_command(kind, {**owned, **trainer_args, **_fsdp_arguments(trainer_args)})


def _fsdp_arguments(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """FSDP's arguments in swift: one option has the whole configuration, and FSDP does the activation checkpointing."""
    if not trainer_args.get("fsdp"):
        return {}
    hf_training.enable_full_fsdp_state()
    config = {"state_dict_type": "FULL_STATE_DICT", **(trainer_args.get("fsdp_config") or {})}
    config["activation_checkpointing"] = trainer_args.get("gradient_checkpointing", True)
    return {"fsdp": {"fsdp_config": config}, "fsdp_config": None}


def parse_command(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """The arguments of a swift command, by swift's own parser; `UserError` with its message if it refuses them."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            arguments, rest = hooks.PARSE.get()(kind, command_line(settings))
    except SystemExit:
        # argparse: the usage, then "<program>: error: <what is wrong>".
        raise UserError(
            f"ms-swift refuses the settings: {stderr.getvalue().strip().rpartition('error: ')[2]}"
        ) from None
    except (ValueError, TypeError, ImportError, RuntimeError, AssertionError) as error:
        raise UserError(f"ms-swift refuses the settings: {one_line(error)}") from error
    if rest:
        raise UserError(f"ms-swift refuses the settings: it does not know {' '.join(rest)}")
    return arguments


def server_arguments(trainer_args: Mapping[str, Any], model: Path, address: Mapping[str, Any]) -> Any:
    """The arguments of `swift rollout` for a trainer with these arguments; vLLM's are the same.

    `address` has the server's `host`, `port` and `seed`. swift's parser counts GPUs, which are missing on a CPU
    and may be missing where settings are resolved; vLLM itself checks them.
    """
    with importing():
        kind = hooks.SERVER_ARGUMENTS.get()

    passed = {field.name for field in dataclasses.fields(hooks.VLLM_ARGUMENTS.get())} | {*_TEMPLATE, _ADAPTER_ALONE}
    settings = {
        **model_arguments(model),
        "vllm_disable_custom_all_reduce": False,  # vLLM's default, as in TRL
        **{name: value for name, value in trainer_args.items() if name in passed},
        # The format of generation, not of the optimizer's weights.
        "torch_dtype": hf_training.number_format(trainer_args["bf16"], trainer_args.get("fp16")),
        **address,
    }
    if trainer_args.get(_ADAPTER_ALONE):
        settings["vllm_max_lora_rank"] = trainer_args.get("lora_rank", 8)
    hooks.COUNT_DEVICES.replace(lambda self: None)
    return parse_command(kind, settings)


def command_line(settings: Mapping[str, Any]) -> list[str]:
    """Settings as command line arguments: a list as several arguments, a mapping as JSON; null is left out."""
    arguments: list[str] = []
    for name, value in settings.items():
        if value is None or value == []:
            continue
        items = value if isinstance(value, list | tuple) else [value]
        arguments += [f"--{name}", *(_argument(item) for item in items)]
    return arguments


def _argument(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _type_of(model: Path) -> str | None:
    """swift's model type, if several have the model's architecture: the first with the standard loader.

    They differ in the chat template, but runs use the tokenizer's own. None if swift finds the type itself.
    """
    with importing():
        models, loader = hooks.MODELS.get(), hooks.LOADER.get()

    config = retry_io(lambda: read_json(model / "config.json"), "the model")
    types = hooks.MODEL_TYPES.get()(config.get("architectures"))
    plain = [name for name in types if models[name].loader is loader and not models[name].is_reward]
    return plain[0] if len(types) > 1 and plain else None


def set_environment(folder: Path) -> None:
    """Set the folder for weights, and defaults of the variables that swift and ModelScope's client read.

    The client needs a folder, and the home folder may be on another node or full. swift's own log level prints all
    arguments and the model.
    """
    os.environ[WEIGHTS] = str(folder / "weights")
    os.environ.setdefault("MODELSCOPE_CACHE", str(folder / "modelscope"))
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    # swift's vLLM plugin is for embeddings and imports torchvision.
    os.environ.setdefault("VLLM_PLUGINS", "none")
    # With vLLM swift's parser opens a process group of one process at port 29500 (utils/torch_utils.py,
    # set_default_ddp_config); another user's torchrun on a login node may have that port.
    os.environ.setdefault("MASTER_PORT", str(free_port()))


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """ms-swift's version and its resolved arguments; `UserError` for settings that it refuses."""
    cpu = hf_training.cpu_fallback(trainer_args)
    # Otherwise one process that sees several GPUs spreads the model over them; swift refuses vLLM and FSDP with that.
    os.environ["SWIFT_SINGLE_DEVICE_MODE"] = "1"
    with tempfile.TemporaryDirectory(prefix="rolloutbench-swift-") as folder:
        set_environment(Path(folder))
        (Path(folder) / "config.json").write_text(json.dumps(_STAND_IN), encoding="utf-8")
        owned = owned_settings({"checkpoint_dir": folder, "run_id": "settings"}, Path(folder), Path(folder))
        settings = {"reward_weights": hf_training.reward_weights(rewards), **with_scheduler(trainer_args), **cpu}
        if uses_server(settings):
            server_arguments(settings, Path(folder), _NO_ADDRESS)
            hooks.CONNECT.replace(lambda self: None)
            arguments = parsed(settings, {**owned, **_NO_SERVER})
        else:
            arguments = parsed(settings, owned)
    left_out = hf_training.ATTEMPT_FIELDS | cpu.keys() | _NO_SERVER.keys()
    names = (*_SWIFT_SETTINGS, *(_OF_AN_ADAPTER if arguments.tuner_type == "lora" else ()))
    all_settings = {**arguments.training_args.to_dict(), **{name: getattr(arguments, name) for name in names}}
    settings = {key: value for key, value in all_settings.items() if key not in left_out}
    return importlib.metadata.version("ms-swift"), flatten(settings)
