"""Reads a command of TRL or ms-swift, `--name value ...`, as an experiment: both take transformers' arguments.

A setting is a word of the workload, an option of the arms, or neither. What the experiment has otherwise needs no rule:
all settings of the command, with the trainer's defaults, are compared with those of the experiment's own arm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import yaml

from trainers.hf_arguments import BOOKKEEPING, FSDP, HALF, HF, KEYS, OWNED
from trainers.launching import STEPS, Argument, Launched, Left, Surroundings, as_count, words_of

_PROMPT_TOKENS = 1024
# A float that YAML 1.1 takes for text.
_FLOAT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
_OTHERWISE_NAMED, _NOT_IN_A_RUN, _OF_THE_ENGINE = (
    frozenset(HF["launch"][name]) for name in ("otherwise_named", "not_in_a_run", "of_the_engine")
)
_BY_WORDS = _OTHERWISE_NAMED | {*HF["launch"]["by_words"]}


class Given(NamedTuple):
    """A setting of the command, and the words that give it."""

    value: Any
    line: int
    text: str
    unknown: tuple[str, ...] = ()


class Arguments(dict[str, Given]):
    """The settings of a command, by name."""

    def value(self, name: str, default: Any = None) -> Any:
        """The value of a setting; the default without it."""
        return self[name].value if name in self else default

    def values_of(self, name: str) -> list[Any]:
        """The values of a setting that takes several; none without it."""
        value = self.value(name, [])
        return value if isinstance(value, list) else [value]

    def line(self, name: str) -> int:
        """The line of a setting; 0 without it."""
        return self[name].line if name in self else 0


def options_begin(words: Sequence[str], command: tuple[str, str], own_programs: tuple[str, ...]) -> int | None:
    """Where the options of a command of two words begin, or of its own program; None in another command."""
    for place, (word, following) in enumerate(pairwise(words)):
        if (word.rpartition("/")[2], following) == command:
            return place + 2
    return next((place + 1 for place, word in enumerate(words) if word.endswith(own_programs)), None)


def given_arguments(words: Sequence[Argument], around: Surroundings) -> tuple[Arguments, list[Left]]:
    """The command's settings; those of a `--config` file come first, as TRL has it."""
    found, left = Arguments(), list[Left]()
    groups: list[list[Argument]] = []
    for word in words:
        if word.text.startswith("--"):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
        else:
            left.append(Left(word.line, word.text, "not an option (--name value)", "give it by hand"))
    for first, *others in groups:
        name, equals, text = first.text[2:].partition("=")
        values = [*([value_of(text)] if equals else []), *(value_of(word.text) for word in others)]
        value = values if len(values) > 1 else values[0] if values else True
        unknown = tuple(one for word in (first, *others) for one in word.unknown)
        shown = " ".join(word.text for word in (first, *others))
        found[name.replace("-", "_")] = Given(value, first.line, shown, unknown)
    if (config := found.get("config")) is not None:
        content = around.files.get(str(config.value)) or around.read_file(str(config.value))
        try:
            read = yaml.safe_load(content) if content else None
        except yaml.YAMLError:
            read = None
        if isinstance(read, dict):
            settings = {str(k): Given(_number(v), config.line, f"{k}: {v}") for k, v in read.items()}
            found = Arguments(settings | found)
        else:
            left.append(Left(config.line, config.text, "this file cannot be read here as YAML", "add its settings"))
    return found, left


def all_settings(given: Arguments, defaults: Mapping[str, Any], with_vllm: Mapping[str, Any]) -> dict[str, Any]:
    """The command's settings and the trainer's defaults, of which some are `with_vllm` alone; without the steps of
    checkpoints that are not saved.
    """
    further = with_vllm if given.value("use_vllm") is True else {}
    found = {**defaults, **further, **{name: one.value for name, one in given.items()}}
    return {name: value for name, value in found.items() if name != "save_steps" or found.get("save_strategy") != "no"}


def value_of(text: str) -> Any:
    """A value of a command line: a number, true, false, JSON, or text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(rf"{_FLOAT.pattern}|[-+]?\d+(\.\d+)?|[\[{{].*", text):
        try:
            return _number(yaml.safe_load(text))
        except yaml.YAMLError:
            return text
    return text


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value


def launched(
    given: Arguments,
    around: Surroundings,
    values: Mapping[str, Any],
    *,
    engine: str,
    options: Mapping[str, Any],
    apart: frozenset[str],
    adapter: bool,
    server_gpus: int,
) -> Launched:
    """The experiment of a command's settings, without its rewards, model and data.

    `values` are the settings with the trainer's defaults, `options` defaults that an experiment has otherwise. Settings
    in `apart` are no options of an arm.
    """
    found = Launched(engine, options=dict(options), seed=as_count(values.get("seed")))
    nodes = max(1, around.nodes)
    processes = around.processes or max(1, around.gpus_per_node * nodes - server_gpus)
    found.workload = _workload(values, processes)
    found.workload |= {"nodes": nodes, "gpus_per_node": max(1, -(-(processes + server_gpus) // nodes))}
    if server_gpus:
        why = f"{processes + server_gpus}: {processes} of the trainer, and {server_gpus} of the engine's server"
        found.left.append(Left(0, "GPUs", why, "give --gpus and --nodes if a node has fewer"))
    jobs = []
    for name, one in given.items():
        if name in _BY_WORDS | apart:
            continue
        if one.unknown:
            found.left.append(Left(one.line, one.text, f"{', '.join(one.unknown)}: not set in the script", "add it"))
        elif name in BOOKKEEPING | _NOT_IN_A_RUN:
            jobs.append(one)
        elif name not in OWNED:
            of_engine = name in _OF_THE_ENGINE or name.startswith(f"{engine}_")
            target = found.engine_options.setdefault(engine, {}) if of_engine else found.options
            target[name] = one.value
    if jobs:
        names = ", ".join(dict.fromkeys(one.text.partition(" ")[0].partition("=")[0].rstrip(":") for one in jobs))
        found.left.append(Left(jobs[0].line, names, "names, trackers, logging and validation: the job sets its own"))
    _shard(given, found, processes > 1 and not adapter)
    if "max_prompt_length" not in values:
        why = f"the script has none: {_PROMPT_TOKENS} tokens"
        found.left.append(Left(0, "max_prompt_length", why, "change workload.max_prompt_length"))
    if as_count(values.get("max_steps")) <= 0:
        why = f"{values.get('num_train_epochs')}: a comparison trains {STEPS} steps"
        found.left.append(Left(given.line("num_train_epochs"), "num_train_epochs", why, "change workload.steps"))
    return found


def _workload(values: Mapping[str, Any], processes: int) -> dict[str, Any]:
    micro, passes = (
        as_count(values[name], 1) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    steps = as_count(values.get("max_steps"))
    steps = steps if steps > 0 else STEPS
    warmup = values.get("warmup_steps") or values.get("warmup_ratio") or 0
    # Below 1 it is a share of the steps.
    warmup = int(warmup) if isinstance(warmup, int) or warmup >= 1 else int(warmup * steps)
    return {
        "max_prompt_length": _PROMPT_TOKENS,
        **words_of(KEYS, values),
        "steps": steps,
        "batch_size": micro * passes * processes,
        "micro_batch_size": micro,
        "lr_warmup_steps": warmup,
        "beta": values["beta"],
        "loss_type": values["loss_type"],
        "dtype": "bfloat16" if values["bf16"] else "float32",
        "save_steps": 0 if values.get("save_strategy") == "no" else as_count(values.get("save_steps"), 500),
    }


def _shard(given: Arguments, found: Launched, several: bool) -> None:
    """FSDP2 in the place of DeepSpeed or another FSDP, without what it does not take."""
    for name in FSDP:
        found.options.pop(name, None)
    switch = next((given[name] for name in ("deepspeed", "fsdp") if given.value(name)), None)
    if switch is None:
        return
    why = "with one process or an adapter each GPU has the whole model"
    if several:
        why = f"an experiment shards the model with FSDP2 (options.{FSDP[0]})"
        found.options[FSDP[0]] = True
        for options in (found.options, *found.engine_options.values()):
            for name in ("offload_model", "offload_optimizer"):
                options.pop(name, None)
            # It keeps float32 weights and computes in bfloat16, as DeepSpeed does.
            if options.get("torch_dtype") in HALF:
                options.pop("torch_dtype")
    found.left.append(Left(switch.line, switch.text, why))


def compared_by_words(name: str) -> bool:
    """Whether a setting is compared by the workload's words: the batch has other factors, a length another name."""
    return name in _OTHERWISE_NAMED or name in _NOT_IN_A_RUN


def hub_or_path(source: str) -> str:
    """A source without ms-swift's prefix and number of rows (`hf::team/name#1000`)."""
    return re.sub(r"#\d+$", "", source).removeprefix("hf::").removeprefix("ms::")


def rewards(given: Arguments, found: Launched, own: Callable[[str], dict[str, Any] | None]) -> None:
    """The workload's rewards, of the names for which `own` has one."""
    weights, known = given.values_of("reward_weights"), list[dict[str, Any]]()
    for place, name in enumerate(dict.fromkeys(map(str, given.values_of("reward_funcs")))):
        if (reward := own(name)) is None:
            why = "an experiment has no reward of this name"
            do = "give your own under workload.rewards (docs/rewards.md)"
            found.left.append(Left(given["reward_funcs"].line, name, why, do))
            continue
        if place < len(weights) and weights[place] != 1:
            reward["weight"] = float(weights[place])
        known.append(reward)
    if not known:
        found.left.append(Left(0, "reward_funcs", "none that an experiment has: `accuracy` is used", "add yours"))
    found.workload["rewards"] = known or [{"name": "accuracy"}]


def server_settings(around: Surroundings, command: str, *names: str) -> list[int]:
    """Whole numbers of the engine's server in the same script; 1 each if it is started elsewhere."""
    for words in around.commands:
        texts = [word.text for word in words]
        if command in texts:
            given, _ = given_arguments(words[texts.index(command) + 1 :], around)
            return [as_count(given.value(name), 1) for name in names]
    return [1] * len(names)
