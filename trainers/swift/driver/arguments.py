"""Turns a run's settings into ms-swift's arguments, in swift's own parser: what it refuses is told in its words."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.dotted import flatten
from common.errors import UserError
from node import hf_training
from node.engine_server import uses_server
from node.exit_codes import one_line
from node.hardware import free_port, importing
from trainers.swift.driver.pipeline import with_scheduler

# What every run has: it needs no ModelScope, and writes where it is told.
_CONSTANT: Mapping[str, Any] = {
    "rlhf_type": "grpo",
    "check_model": False,
    "add_version": False,
    "create_checkpoint_symlink": False,
}
# What decides beside TrainingArguments' own fields what a step is.
_BESIDE = (
    "tuner_type",
    "torch_dtype",
    "template",
    "template_backend",
    "max_length",
    "truncation_strategy",
    "data_seed",
)
# What a server shares with its trainer beside vLLM's own arguments.
_TEMPLATE = ("template", "template_backend", "max_length")
_ADAPTER_ALONE = "vllm_enable_lora"
# Where settings are resolved there is no server.
_NOWHERE: Mapping[str, Any] = {"host": "127.0.0.1", "port": 0, "seed": 0}
_TO_NOBODY: Mapping[str, Any] = {"vllm_server_base_url": ["http://127.0.0.1"], "vllm_server_group_port": [0]}
_OF_AN_ADAPTER = ("lora_alpha", "lora_dropout", "target_modules")
# The least that swift asks of a model before it parses on: it reads config.json alone.
_STAND_IN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 1 << 20}


def owned_settings(attempt: Mapping[str, Any], model: Path, data: Path) -> dict[str, Any]:
    """The arguments that the job sets itself: the run's inputs, where files land, and that every step is logged."""
    ours = {**_CONSTANT, **hf_training.owned_settings(attempt), **of_a_model(model)}
    return {**ours, "dataset": [str(data)]}


def of_a_model(model: Path) -> dict[str, Any]:
    """The arguments that name a model, of the trainer and of its server."""
    return {"use_hf": True, "model": str(model), "model_type": _type_of(model)}


def parsed(trainer_args: Mapping[str, Any], owned: Mapping[str, Any]) -> Any:
    """ms-swift's RLHFArguments; `UserError` for one that it does not have, that the job owns, or that it refuses."""
    with importing():
        from swift.arguments import RLHFArguments

    version = importlib.metadata.version("ms-swift")
    fixed = {name: value for name, value in owned.items() if name != "model_type"}
    hf_training.require_settings(trainer_args, RLHFArguments, fixed, f"no argument of ms-swift {version}'s rlhf")
    return of_a_command(RLHFArguments, {**owned, **trainer_args, **_in_shares(trainer_args)})


def _in_shares(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """FSDP in swift's words: its option has the whole configuration, and a pass is checkpointed by FSDP's own means."""
    if not trainer_args.get("fsdp"):
        return {}
    hf_training.enable_full_fsdp_state()
    config = {"state_dict_type": "FULL_STATE_DICT", **(trainer_args.get("fsdp_config") or {})}
    config["activation_checkpointing"] = trainer_args.get("gradient_checkpointing", True)
    return {"fsdp": {"fsdp_config": config}, "fsdp_config": None}


def of_a_command(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """The arguments of one of swift's commands, by its own parser; `UserError` with its words for what it refuses."""
    from swift.utils import parse_args

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            arguments, rest = parse_args(kind, command_line(settings))
    except SystemExit:
        # argparse: the usage, then "<program>: error: <what is wrong>".
        raise UserError(f"ms-swift refuses the settings: {said.getvalue().strip().rpartition('error: ')[2]}") from None
    except (ValueError, TypeError, ImportError, RuntimeError, AssertionError) as error:
        raise UserError(f"ms-swift refuses the settings: {one_line(error)}") from error
    if rest:
        raise UserError(f"ms-swift refuses the settings: it does not understand {' '.join(rest)}")
    return arguments


def served(trainer_args: Mapping[str, Any], model: Path, here: Mapping[str, Any]) -> Any:
    """The arguments of `swift rollout` beside a trainer with these: vLLM's are the trainer's own.

    `here` are the server's `host`, `port` and `seed`. swift counts GPUs at once, which are not where settings are
    resolved, nor on a CPU: vLLM counts its own.
    """
    with importing():
        from swift.arguments import RolloutArguments
        from swift.rlhf_trainers.args_mixin import VllmArguments

    passed = {field.name for field in dataclasses.fields(VllmArguments)} | {*_TEMPLATE, _ADAPTER_ALONE}
    settings = {
        **of_a_model(model),
        "vllm_disable_custom_all_reduce": False,  # as in vLLM's own settings, which TRL leaves as they are
        **{name: value for name, value in trainer_args.items() if name in passed},
        # In which it generates; the weights that the optimizer holds are another matter.
        "torch_dtype": hf_training.number_format(trainer_args["bf16"], trainer_args.get("fp16")),
        **here,
    }
    if trainer_args.get(_ADAPTER_ALONE):
        settings["vllm_max_lora_rank"] = trainer_args.get("lora_rank", 8)
    RolloutArguments._check_device_count = lambda self: None
    return of_a_command(RolloutArguments, settings)


@contextlib.contextmanager
def _unconnected() -> Iterator[None]:
    """swift's parser for the trainer looks for the server; inside the block it does not."""
    from swift.arguments import RLHFArguments

    connect = RLHFArguments._init_external_vllm
    RLHFArguments._init_external_vllm = lambda self: None
    try:
        yield
    finally:
        RLHFArguments._init_external_vllm = connect


def command_line(settings: Mapping[str, Any]) -> list[str]:
    """Settings as arguments: a list's items one after another, a mapping as JSON; null is left out."""
    words: list[str] = []
    for name, value in settings.items():
        if value is None or value == []:
            continue
        items = value if isinstance(value, list | tuple) else [value]
        words += [f"--{name}", *(_word(item) for item in items)]
    return words


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _type_of(model: Path) -> str | None:
    """swift's name for a model's kind, where several have its architecture: the first that it loads in the plain way.

    They differ in the chat template, which is the tokenizer's own here. None where swift finds it by itself.
    """
    with importing():
        from swift.model import MODEL_MAPPING, ModelLoader
        from swift.model.model_meta import get_matched_model_types

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    types = get_matched_model_types(config.get("architectures"))
    plain = [name for name in types if MODEL_MAPPING[name].loader is ModelLoader and not MODEL_MAPPING[name].is_reward]
    return plain[0] if len(types) > 1 and plain else None


def set_environment(folder: Path) -> None:
    """Set what swift and ModelScope's client read, where nobody has.

    The client wants a folder, and the home may be another node's, or full; swift logs all arguments and the model.
    """
    os.environ.setdefault("MODELSCOPE_CACHE", str(folder / "modelscope"))
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    # swift's plugin for vLLM is for embeddings, and imports torchvision.
    os.environ.setdefault("VLLM_PLUGINS", "none")
    # With vLLM its parser has one process meet itself, at 29500 (utils/torch_utils.py, set_default_ddp_config): on a
    # login node another one's torchrun may have that port.
    os.environ.setdefault("MASTER_PORT", str(free_port()))


def resolved(trainer_args: Mapping[str, Any], rewards: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """ms-swift's version and what its arguments come to; `UserError` for what it would refuse."""
    cpu = hf_training.cpu_fallback(trainer_args)
    # One process that sees several GPUs would lay the model over them, and swift refuses vLLM and FSDP beside that.
    os.environ["SWIFT_SINGLE_DEVICE_MODE"] = "1"
    with tempfile.TemporaryDirectory(prefix="rolloutbench-swift-") as folder:
        set_environment(Path(folder))
        (Path(folder) / "config.json").write_text(json.dumps(_STAND_IN), encoding="utf-8")
        owned = owned_settings({"checkpoint_dir": folder, "run_id": "settings"}, Path(folder), Path(folder))
        settings = {"reward_weights": hf_training.reward_weights(rewards), **with_scheduler(trainer_args), **cpu}
        if uses_server(settings):
            served(settings, Path(folder), _NOWHERE)
            with _unconnected():
                arguments = parsed(settings, {**owned, **_TO_NOBODY})
        else:
            arguments = parsed(settings, owned)
    left_out = hf_training.ATTEMPT_FIELDS | cpu.keys() | _TO_NOBODY.keys()
    settings = {key: value for key, value in told(arguments).items() if key not in left_out}
    return importlib.metadata.version("ms-swift"), flatten(settings)


def told(arguments: Any) -> dict[str, Any]:
    """The settings that a run's arguments come to."""
    names = (*_BESIDE, *_OF_AN_ADAPTER) if arguments.tuner_type == "lora" else _BESIDE
    beside = {name: getattr(arguments, name) for name in names}
    return {**arguments.training_args.to_dict(), **beside}
