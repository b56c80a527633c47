"""Writes a commented configuration for the user's model, data, rewards and cluster, and checks that it is valid."""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from common.errors import UserError
from common.files import is_checkout, write_text_at
from common.messages import unknown_name
from common.verdicts import count_of
from engines import engines
from node.built_in_rewards import BUILT_IN
from node.dataset import BUILTIN_DATA
from node.hub import DATA_SUFFIXES, source_kind
from node.tiny import SHAPES
from workflow.config.entry import columns_of, require_readable
from workflow.config.plan import Plan, load_plan
from workflow.preflight import preflight
from workflow.slurm.site import filled_profile
from workflow.stacks import Stack, load_stack, stack_names

# Usual names of the data's columns; the first is the default.
PROMPTS = ("question", "prompt", "problem", "instruction", "query", "input")
ANSWERS = ("answer", "ground_truth", "solution", "target", "output")
TEMPLATE = """\
# Written by rolloutbench new. docs/configuration.md describes every key. After a change:
#   rolloutbench preflight {file}
experiment: {name}
# The arm that all others are compared with.
baseline: {baseline}
# An arm is a trainer with an engine, in a stack (a folder of envs/). It may have `options`, the trainer's own
# settings, and `env`, environment variables of its processes.
arms:
{arms}
# The work, equal for all arms.
workload:
  # A folder, or a hub's id with its `revision` (a commit).
  model: {{{model}}}
  # A .jsonl, .json or .parquet file, or a hub's id with its `revision`.
  data:
    {data}
    prompt_column: {prompt}
    answer_column: {answer}
    # answer_after: "####"   # the answer follows this text
    # system_prompt: Think step by step.
    # too_long: drop         # skip prompts longer than max_prompt_length
  # Built in: {built_in}.
  # Your own: source and function (docs/rewards.md).
  rewards:
{rewards}  # Training steps of each run. 20 or more give a useful interval.
  steps: {steps}
  # Completions of each step, of each prompt, and of one forward pass on one device.
  batch_size: {batch}
  num_generations: 8
  micro_batch_size: 8
  # Tokens. Longer responses are cut off.
  max_prompt_length: {longest}
  max_response_length: {longest}
  temperature: 1.0
  learning_rate: 1.0e-6
  # KL penalty against the initial policy; 0: no reference model.
  beta: 0.0
  dtype: {dtype}
  # Steps between checkpoints, from which an interrupted run resumes; 0: none.
  save_steps: {save}
  # Nodes of each run, and GPUs of each node; 0 GPUs: the CPU.
  nodes: {nodes}
  gpus_per_node: {gpus}
  # gpu: H100-80GB   # for floors, and for what engines choose by the GPU
# One run per arm and seed. Two pairs of runs or more give an interval.
seeds: [0, 1]
# Steps to skip at the start of each run.
warmup_steps: {warmup}
"""
Answers = Mapping[str, str]


class Flag(NamedTuple):
    """One choice: its flag, its default and its check; the last two see the earlier answers."""

    name: str
    default: Callable[[Answers], str]
    check: Callable[[str, Answers], None]


def new_experiment(args: argparse.Namespace) -> None:
    """Run `rolloutbench new`: take flags, or their defaults; overwrite no file."""
    if not stack_names():
        raise UserError("rolloutbench new needs the stacks in envs/ of a checkout; run it in one, after `make venv`")
    file: Path = args.file or Path("my.yaml")
    name = name_of(file)
    profile = Path("profiles") / name / "config.yaml"
    require_free(file)
    found = answers({one.name: getattr(args, one.name) for one in FLAGS if getattr(args, one.name) is not None})
    writes = {file: configuration(found, name, file)}
    if found["partition"]:
        gpus = int(found["gpus"])
        values = {"slurm_partition": found["partition"], "gres": f"gpu:{gpus}" if gpus else ""}
        values |= {"cpus_per_task": str(16 * gpus or 4), "mem_mb": str(100_000 * gpus or 16_000)}
        writes[profile] = filled_profile(values)
    require_free(*writes)
    try:
        plan = _planned(writes[file])
        require_readable(plan)
    except UserError as error:
        raise UserError(f"{' '.join(str(error).split())} (nothing was written)") from None
    for path, text in writes.items():
        write_text_at(path, text, "give another file")
        print(f"wrote {path}")
    steps = count_of(int(found["steps"]), "step")
    print(f"{', '.join(plan.config.arms)}: {count_of(len(plan.runs), 'run')} of {steps} each")
    print_next(file, profile.parent if found["partition"] else None, int(found["gpus"]))


def print_next(file: Path, profile: Path | None, gpus: int) -> None:
    """The commands that come next."""
    used = profile or ("slurm" if gpus else "profiles/local")
    written = shlex.quote(str(file))
    site = f"{written} --profile {profile}" if profile else written
    print(f"next: rolloutbench doctor {site}       # what this machine or site lacks")
    print(f"      rolloutbench preflight {site}    # what is impossible, unequal or odd")
    where = "" if is_checkout() else "    # in a checkout of rolloutbench, after `make venv`"
    print(f"      snakemake --profile {used} --configfile {written}{where}")


def name_of(file: Path) -> str:
    """The experiment's name in a configuration file of that name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", file.stem)[:40].strip("-._") or "mine"


def require_free(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"{path} exists; give another name: rolloutbench new FILE (nothing was written)")


def answers(given: Answers) -> dict[str, str]:
    """Each flag's value: given, or its default; `UserError` names the flag of a wrong one."""
    found: dict[str, str] = {}
    for one in FLAGS:
        value = given[one.name] if one.name in given else one.default(found)
        try:
            one.check(value, found)
        except UserError as error:
            raise UserError(f"--{one.name}: {error}") from None
        found[one.name] = value
    return found


def configuration(found: Answers, name: str, file: Path) -> str:
    """The commented configuration."""
    stacks = {one.engine: one.name for one in _stacks(found) if one.trainer == found["trainer"]}
    engines = [*dict.fromkeys(found["engines"].split(","))]
    arm = "  {1}:\n    trainer: {0}\n    engine: {1}\n    stack: {2}\n"
    steps, on_gpus = int(found["steps"]), int(found["gpus"]) > 0
    devices = max(1, int(found["gpus"]) * int(found["nodes"]))
    prompt, _, answer = found["columns"].partition(",")
    derived = {
        "file": _yaml(str(file)),
        "name": _yaml(name),
        "baseline": engines[0],
        "arms": "".join(arm.format(found["trainer"], engine, stacks[engine]) for engine in engines),
        "model": ", ".join(_source_lines(found["model"])),
        "data": "\n    ".join(_source_lines(found["data"])),
        "prompt": _yaml(prompt),
        "answer": _yaml(answer),
        "built_in": ", ".join(BUILT_IN),
        "rewards": "".join(map(_reward_lines, dict.fromkeys(found["rewards"].split(",")))),
        "batch": 8 * devices * -(-8 // devices),  # 8 prompts or more, as many on every device
        "longest": 1024 if on_gpus else 64,
        "dtype": "bfloat16" if on_gpus else "float32",
        "save": max(1, steps // 4),
        "warmup": min(2, steps - 1),
    }
    return TEMPLATE.format_map({**found, **derived})


def _planned(text: str) -> Plan:
    plan = load_plan(yaml.safe_load(text))
    if impossible := preflight(plan).impossible:
        raise UserError("{0.what}: {0.why}; {0.change}".format(impossible[0]))
    return plan


@cache
def _shipped() -> list[Stack]:
    """All stacks, the latest release last."""
    stacks = map(load_stack, stack_names())
    return sorted(stacks, key=lambda one: [int(part) for part in re.findall(r"\d+", one.trainer_version)])


def _stacks(found: Answers) -> list[Stack]:
    """The stacks for GPUs, or for a CPU."""
    return [one for one in _shipped() if (one.cuda is not None) == (int(found["gpus"]) > 0)]


def _trainers(found: Answers) -> list[str]:
    """The trainers with such stacks, the one with most stacks first."""
    return [trainer for trainer, _ in Counter(one.trainer for one in _stacks(found)).most_common()]


def _default_trainer(found: Answers) -> str:
    """The first trainer that trains on these GPUs."""
    for trainer in _trainers(found):
        with suppress(UserError):
            _planned(configuration(answers({**found, "trainer": trainer}), "default", Path()))
            return trainer
    return _trainers(found)[0]


def _default_engines(found: Answers) -> str:
    """The trainer's engines that train on these GPUs; all if none does, so that the error says why."""
    trainable = []
    for engine in _engines(found):
        with suppress(UserError):
            _planned(configuration(answers({**found, "engines": engine}), "default", Path()))
            trainable.append(engine)
    return ",".join(trainable or _engines(found))


def _engines(found: Answers) -> list[str]:
    """The trainer's engines, in the registry's order (vLLM is the usual baseline)."""
    known = {one.engine for one in _stacks(found) if one.trainer == found["trainer"]}
    return [one.name for one in engines() if one.name in known]


def _yaml(text: str) -> str:
    """A text as one line of YAML, quoted if needed."""
    return str(yaml.safe_dump([text], default_flow_style=True, width=10**6, allow_unicode=True)).strip()[1:-1]


def _source_lines(given: str) -> list[str]:
    """`source`, and for a hub's `id@commit` also `revision`."""
    source, at, revision = given.rpartition("@")
    if at and source_kind(given) == "hub":
        return [f"source: {_yaml(source)}", f"revision: {_yaml(revision)}"]
    return [f"source: {_yaml(given)}"]


def _reward_lines(reward: str) -> str:
    file, _, name = reward.rpartition(":")
    return f"    - source: {_yaml(file)}\n      function: {name}\n" if file else f"    - name: {name}\n"


def _default_columns(found: Answers) -> str:
    """Columns by the names in a local file's first row."""
    return ",".join(usual_columns(columns_in(found["data"])))


def columns_in(source: str) -> list[str]:
    """The columns of a local file; none if there is no such file or only reading it all would show them."""
    local = source_kind(source) == "local" and Path(source).expanduser().is_file()
    return (columns_of("--data", Path(source).expanduser()) if local else None) or []


def usual_columns(columns: Iterable[str]) -> tuple[str, str]:
    """The prompt's and the answer's column, by their usual names."""
    prompt, answer = (next((one for one in usual if one in columns), usual[0]) for usual in (PROMPTS, ANSWERS))
    return prompt, answer


def _matching(pattern: str, wanted: str) -> Callable[[str, Answers], None]:
    def check(text: str, found: Answers) -> None:
        if not re.fullmatch(pattern, text):
            raise UserError(f"must be {wanted} (got {text!r})")

    return check


def _among(
    kind: str, known: Callable[[Answers], Iterable[str]], where: str = "", other: str = "(?!)"
) -> Callable[[str, Answers], None]:
    def check(text: str, found: Answers) -> None:
        for one in text.split(","):
            if one not in known(found) and not re.fullmatch(other, one):
                raise UserError(unknown_name(kind, one, known(found)) + where.format(**found))

    return check


def _source(suffixes: tuple[str, ...], builtins: tuple[str, ...]) -> Callable[[str, Answers], None]:
    """Checks a source: built in, an existing path, or a hub's id with its commit."""
    wanted = f"{' or '.join(suffixes)} file" if suffixes else "folder"

    def check(text: str, found: Answers) -> None:
        kind, path = source_kind(text), Path(text).expanduser()
        if kind == "builtin" and text not in builtins:
            raise UserError(unknown_name("source", text, builtins))
        if kind == "hub" and not re.fullmatch(r"[^@]+@[^@]+", text):
            raise UserError(f"must be ID@COMMIT of a hub, or the path of a {wanted}, such as ./{text} (got {text!r})")
        if kind == "local" and not (path.suffix in suffixes and path.is_file() if suffixes else path.is_dir()):
            raise UserError(f"must be an existing {wanted} (got {text!r})")

    return check


_COUNT = _matching("[1-9][0-9]{0,5}", "a whole number, 1 or more")
_MODEL, _DATA = _source((), tuple(SHAPES)), _source(DATA_SUFFIXES, BUILTIN_DATA)
_REWARDS = _among("reward", lambda found: BUILT_IN, other=r".+\.py:[A-Za-z_]\w*")
FLAGS = (
    Flag("gpus", lambda found: "0", _matching("[0-9]{1,3}", "0 to 999")),
    Flag("nodes", lambda found: "1", _COUNT),
    Flag("trainer", _default_trainer, _among("trainer", _trainers, " (with --gpus {gpus})")),
    Flag("engines", _default_engines, _among("engine", _engines, " (with --gpus {gpus} --trainer {trainer})")),
    Flag("model", lambda found: tuple(SHAPES)[int(found["gpus"]) > 0], _MODEL),
    Flag("data", lambda found: BUILTIN_DATA[0], _DATA),
    Flag("columns", _default_columns, _matching("[^,]+,[^,]+", "two names, PROMPT,ANSWER")),
    Flag("rewards", lambda found: "accuracy,format", _REWARDS),
    Flag("steps", lambda found: "20", _COUNT),
    Flag("partition", lambda found: "", _matching(r"[\w.,-]*", "a Slurm partition")),
)
