"""Reads a command of ms-swift, `swift rlhf --rlhf_type grpo ...`, as an experiment; names of 3.x and of 4.x."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
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
from trainers.launching import Argument, Checkpoints, Launch, Launched, Left, Surroundings, as_count

_SERVER = "rollout"
TABLE = table_in(Path(__file__).parent, HF)
"""What ms-swift has in all its runs."""
_TABLE = TABLE["launch"]
_WITH_VLLM: Mapping[str, Any] = {"vllm_max_model_len": None, "vllm_max_num_seqs": None}
_OF_REWARDS = frozenset(name for reward in _TABLE["rewards"].values() for name in reward["options"])


def arguments(words: Sequence[str]) -> int | None:
    """Where the options of `swift rlhf` begin."""
    return options_begin(words, ("swift", "rlhf"), ("swift/cli/rlhf.py", "swift.cli.rlhf"))


def settings(words: Sequence[Argument], around: Surroundings, version: str) -> Mapping[str, Any]:
    """The settings of the command, by their names in 4.x, with swift's defaults."""
    return _values(_given(words, around)[0])


def _values(given: Arguments) -> dict[str, Any]:
    return all_settings(given, _TABLE["defaults"], _WITH_VLLM)


def _given(words: Sequence[Argument], around: Surroundings) -> tuple[Arguments, list[Left]]:
    given, left = given_arguments(words, around)
    return Arguments({_TABLE["renamed"].get(name, name): one for name, one in given.items()}), left


def launch(words: Sequence[Argument], around: Surroundings) -> Launched:
    """The experiment of the command; a `UserError` if it does not train with GRPO."""
    given, left = _given(words, around)
    if (kind := given.value("rlhf_type", "dpo")) != "grpo":
        raise UserError(
            f"the script trains with --rlhf_type {kind}, and an experiment compares GRPO; `rolloutbench ab` runs a "
            "script as it is"
        )
    engines = (("use_vllm", "vllm"), ("use_lmdeploy", "lmdeploy"))
    engine = next((engine for name, engine in engines if given.value(name) is True), "transformers")
    full = given.value("tuner_type") == "full"
    # A batch of swift's is 16 sequences unless told otherwise (arguments/sft_args.py).
    micro = as_count(given.value("per_device_train_batch_size"), 1)
    passes = max(1, -(-16 // micro // max(1, around.processes)))
    values = {
        **{"gradient_accumulation_steps": passes, "learning_rate": 1e-5 if full else 1e-4},
        **_values(given),
    }
    server = _server(given, around) if engine == "vllm" else {}
    if "max_length" in given:
        # It limits the prompt.
        values["max_prompt_length"] = as_count(given.value("max_length")) or None
    found = launched(
        given,
        around,
        values,
        engine=engine,
        options=_TABLE["unlike_ours"],
        apart=_OF_REWARDS.union(_TABLE["apart"]),
        adapter=not full,
        server_gpus=math.prod(server.values()) if server else 0,
    )
    found.left += left
    if engine == "vllm":
        # swift's default; an experiment's engine sleeps during the update.
        own = {"sleep_level": 0, "vllm_engine_kwargs": {}} | found.engine_options.get(engine, {})
        if server:
            own |= {"vllm_mode": "server", **server}
            del own["sleep_level"]
        found.engine_options[engine] = own
    found.workload["model"] = {"source": str(given.value("model", ""))}
    _data(given, around, found)
    rewards(given, found, lambda name: _reward(name, given))
    why = "the experiment's differs on purpose (docs/rewards.md)"
    named = given.values_of("reward_funcs")
    found.left += [Left(given.line("reward_funcs"), name, why) for name in ("cosine", "repetition") if name in named]
    return found


def _server(given: Arguments, around: Surroundings) -> dict[str, int]:
    """The sizes of the vLLM server apart from the training, by option; none where the training has the engine."""
    sizes = ("vllm_tensor_parallel_size", "vllm_data_parallel_size")
    workers = as_count(given.value("num_infer_workers"))
    if 0 < workers < around.processes:
        return dict(zip(sizes, (1, workers), strict=True))
    if given.value("vllm_mode") == "server" or "vllm_server_host" in given:
        return dict(zip(sizes, server_settings(around, _SERVER, *sizes), strict=True))
    return {}


def _data(given: Arguments, around: Surroundings, found: Launched) -> None:
    sources, line = given.values_of("dataset"), given.line("dataset")
    first = str(sources[0]) if sources else ""
    data: dict[str, Any] = {"source": hub_or_path(first)}
    if "#" in first and first.rpartition("#")[2].isdigit():
        data["rows"] = int(first.rpartition("#")[2])
    if "system" in given:
        system = str(given.value("system"))
        # swift reads the text from such a file.
        text = around.read_file(system) if system.endswith(".txt") else system
        if text is None:
            found.left.append(Left(given.line("system"), system, "no such file here", "write data.system_prompt"))
        else:
            data["system_prompt"] = text.strip()
    if len(sources) > 1:
        found.left.append(Left(line, " ".join(map(str, sources[1:])), "only the first dataset is used", "join them"))
    if sources:
        why = "prompts use the tokenizer's own chat template, without swift's dataset and template preprocessing"
        do = "check data.prompt_column and answer_column"
        found.left.append(Left(line, "template, template_backend, dataset", why, do))
    found.workload["data"] = data


def _reward(name: str, given: Arguments) -> dict[str, Any] | None:
    plugins = given.values_of("external_plugins")
    if name not in _TABLE["rewards"]:
        return {"source": str(plugins[0]), "function": name, "signature": "swift"} if plugins else None
    ours = _TABLE["rewards"][name]
    options = {ours: given.value(theirs) for theirs, ours in ours["options"].items() if theirs in given}
    return {"name": ours["name"], **({"options": options} if options else {})}


LAUNCH = Launch(
    arguments=arguments,
    read=launch,
    settings=settings,
    # By default each start has a folder with its time in its name.
    checkpoints=Checkpoints("--output_dir", False),
    not_compared=lambda name: compared_by_words(name) or name in _OF_REWARDS,
)
