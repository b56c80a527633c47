"""Reads a command of TRL, `trl grpo --config grpo.yaml ...`, as an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainers.described import table_in
from trainers.hf_arguments import HF
from trainers.hf_launch import (
    Arguments,
    all_settings,
    compared_by_words,
    given_arguments,
    hub_or_path,
    launched,
    options_begin,
    rewards,
    server_settings,
)
from trainers.launching import Argument, Checkpoints, Launch, Launched, Left, Surroundings

_SERVER = "vllm-serve"
TABLE = table_in(Path(__file__).parent, HF)
"""What TRL has in all its runs."""
_TABLE = TABLE["launch"]


def arguments(words: Sequence[str]) -> int | None:
    """Where the options of `trl grpo` begin."""
    return options_begin(words, ("trl", "grpo"), ("trl.scripts.grpo", "trl/scripts/grpo.py"))


def settings(words: Sequence[Argument], around: Surroundings, version: str) -> Mapping[str, Any]:
    """The settings of the command, with TRL's defaults."""
    return _values(given_arguments(words, around)[0])


def _values(given: Arguments) -> dict[str, Any]:
    return all_settings(given, _TABLE["defaults"], _TABLE["with_vllm"])


def launch(words: Sequence[Argument], around: Surroundings) -> Launched:
    """The experiment of the command."""
    given, left = given_arguments(words, around)
    engine = "vllm" if given.value("use_vllm") is True else "transformers"
    served = engine == "vllm" and given.value("vllm_mode") == "server"
    tensor, data = server_settings(around, _SERVER, "tensor_parallel_size", "data_parallel_size")
    gpus, adapter = tensor if served else 0, given.value("use_peft") is True
    found = launched(
        given,
        around,
        _values(given),
        engine=engine,
        options={},
        apart=frozenset(_TABLE["apart"]),
        adapter=adapter,
        server_gpus=gpus,
    )
    found.left += left
    if engine == "vllm":
        # TRL's default; an experiment's engine sleeps during the update.
        own = {"vllm_tensor_parallel_size": gpus} if served else {"vllm_enable_sleep_mode": False}
        found.engine_options[engine] = own | found.engine_options.get(engine, {})
    if served and data > 1:
        why = "TRL's server has one engine in an experiment"
        found.left.append(Left(0, f"trl {_SERVER} --data_parallel_size {data}", why))
    _sources(given, found)
    rewards(given, found, _reward)
    if given.value("use_cpu") is True:
        found.workload |= {"gpus_per_node": 0, "dtype": "float32"}
    return found


def _sources(given: Arguments, found: Launched) -> None:
    """The model, how it is loaded, and the data."""
    model = {"source": str(given.value("model_name_or_path") or given.value("model", ""))}
    if (revision := str(given.value("model_revision", "main"))) != "main":
        model["revision"] = revision
    data = {"source": hub_or_path(str(given.value("dataset_name", "")))}
    for name, key in (("dataset_config", "subset"), ("dataset_train_split", "split")):
        if name in given:
            data[key] = str(given.value(name))
    found.workload |= {"model": model, "data": data}
    loading = {
        key: value for name, key in _TABLE["loading"].items() if (value := given.value(name)) not in ("auto", None)
    }
    if loading:
        found.options["model_init_kwargs"] = {**(found.options.get("model_init_kwargs") or {}), **loading}


def _reward(name: str) -> dict[str, Any] | None:
    known, (module, _, function) = _TABLE["rewards"], name.rpartition(".")
    own = {"source": f"{module.replace('.', '/')}.py", "function": function, "signature": "trl"} if module else None
    return dict(known[name]) if name in known else own


LAUNCH = Launch(
    arguments=arguments,
    read=launch,
    settings=settings,
    checkpoints=Checkpoints("--output_dir", True),
    not_compared=lambda name: compared_by_words(name) or name in _TABLE["loading"],
)
