"""Writes a commented configuration for the user's model, data, rewards and cluster, and checks that it is valid."""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from common.files import write_text_at
from common.messages import unknown_name
from common.verdicts import count_of
from engines import engines
from node.built_in_rewards import BUILT_IN
from node.dataset import BUILTIN_DATA
from node.hub import source_kind
from node.tiny import SHAPES
from workflow.commands.site_profile import profile_of
from workflow.commands.start_runs import command_line, run_line
from workflow.config.entry import columns_of, require_readable
from workflow.config.plan import Plan, load_plan
from workflow.head.train_rule import ON_ONE_MACHINE, exposed
from workflow.preflight import preflight
from workflow.slurm.site import Site
from workflow.stacks import Stack, load_stack, stack_names

# Usual names of the data's columns; the first is the default.
PROMPTS = ("question", "prompt", "problem", "instruction", "query", "input")
ANSWERS = ("answer", "ground_truth", "solution", "target", "output")
_COMMENTS = tomllib.loads(Path(__file__).with_name("comments.toml").read_text(encoding="utf-8"))
Answers = Mapping[str, str]


def new_experiment(args: argparse.Namespace) -> None:
    """Run `rolloutbench new`: take flags, or their defaults; overwrite no file."""
    if not stack_names():
        raise UserError("rolloutbench new needs the stacks in envs/ of a checkout; run it in one, after `make venv`")
    file: Path = args.file or Path("my.yaml")
    name = name_of(file)
    profile = Path("profiles") / name / "config.yaml"
    require_free(file)
    found, note = answers(given_flags(args, FLAGS)), ""
    raw = configuration(found, name)
    writes = {file: commented(raw, f"rolloutbench new {file}")}
    if found["partition"]:
        gpus = int(found["gpus"])
        values = {"slurm_partition": found["partition"], "gres": f"gpu:{gpus}" if gpus else ""}
        values |= {"cpus_per_task": str(16 * gpus or 4), "mem_mb": str(100_000 * gpus or 16_000)}
        writes[profile], note = profile_of(values, profile.parent)
    try:
        plan = _planned(raw)
        require_readable(plan)
    except UserError as error:
        raise UserError(f"{' '.join(str(error).split())} (nothing was written)") from None
    write_experiment(writes, plan, int(found["steps"]))
    if (taken := [flag for flag in ("trainer", "model", "data") if getattr(args, flag) is None]) and args.gpus:
        flags = ", ".join(f"--{flag}" for flag in taken)
        print(f"by default: {', '.join(f'{flag} {found[flag]}' for flag in taken)}; {flags} NAME takes another")
    print_next(file, profile.parent if found["partition"] else None, plan, raw["workload"], [note] * bool(note))


def commented(raw: Mapping[str, Any], command: str) -> str:
    """A configuration as YAML, with a comment above each key that has one."""
    lines = [f"# Written by {command}. docs/configuration.md describes every key."]
    place: list[str] = []
    for line in yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=110).splitlines():
        if key := re.match(r"( *)([\w.]+):", line):
            place[len(key[1]) // 2 :] = [key[2]]
            comment = _COMMENTS.get(".".join(place), "").format(built_in=", ".join(BUILT_IN))
            lines += [f"{key[1]}# {text}" for text in textwrap.wrap(comment, 110)]
        lines.append(line)
    return "\n".join(lines) + "\n"


def write_experiment(writes: Mapping[Path, str], plan: Plan, steps: int) -> None:
    """Write a configuration and what belongs to it, and say what it plans; a `UserError` if a file is there."""
    require_free(*writes)
    for path, text in writes.items():
        write_text_at(path, text, "give another file")
        print(f"wrote {path}")
    print(f"{', '.join(plan.config.arms)}: {count_of(len(plan.runs), 'run')} of {count_of(steps, 'step')} each")


def print_next(
    file: Path, profile: Path | None, plan: Plan, workload: Mapping[str, Any], first: Sequence[str] = ()
) -> None:
    """The commands that come next; `first`: what is to be written before."""
    gpus = workload["gpus_per_node"]
    where = [f"on a machine with {count_of(gpus, 'GPU')}"] if gpus and not profile else []
    start = f"{run_line(file)}{'    # ' * bool(where)}{'; '.join(where)}"
    written = shlex.quote(str(file))
    again = f"for Slurm: rm {written}, and the same command with --partition NAME, which also writes a profile"
    word = f"private_nodes: true in {profile}/config.yaml" if profile else ON_ONE_MACHINE
    if exposed(Site(), [run.spec for run in plan.runs.values()]):
        nobody = "if no other user runs on a job's nodes and their network is the cluster's own"
        first = [*first, f"{nobody}: {word} (else nothing starts)"]
    steps = [
        *first,
        f"{command_line('check', str(file))}    # what it costs, and what is lacking, impossible, unequal or odd",
        *([start] if profile or workload["nodes"] == 1 else []),
        *([again] if gpus and not profile else []),
    ]
    print("next: " + "\n      ".join(steps))


def name_of(file: Path) -> str:
    """The experiment's name in a configuration file of that name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", file.stem)[:40].strip("-._") or "mine"


def require_free(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"{path} exists; give another name: rolloutbench new FILE (nothing was written)")


def given_flags(args: argparse.Namespace, flags: Iterable[str]) -> dict[str, str]:
    """Those of the flags that are given, with their values; `UserError` for a value of another form."""
    found = {flag: value for flag in flags if (value := getattr(args, flag)) is not None}
    for flag, value in found.items():
        _, pattern, wanted = FLAGS[flag]
        if not re.fullmatch(pattern, value):
            raise UserError(f"--{flag}: must be {wanted} (got {value!r})")
    return found


def answers(given: Answers) -> dict[str, str]:
    """Each flag's value: given, or its default; `UserError` names the flag of an unknown one."""
    found: dict[str, str] = {}
    for flag, (default, *_) in FLAGS.items():
        found[flag] = value = given[flag] if flag in given else default(found)
        known = _trainers(found) if flag == "trainer" else _engines(found) if flag == "engines" else value.split(",")
        for unknown in (one for one in value.split(",") if one not in known):
            which = f" --trainer {found['trainer']}" * (flag == "engines")
            error = unknown_name(flag.removesuffix("s"), unknown, known)
            raise UserError(f"--{flag}: {error} (with --gpus {found['gpus']}{which})")
    return found


def configuration(found: Answers, name: str) -> dict[str, Any]:
    """The configuration that the flags give."""
    stacks = {one.engine: one.name for one in _stacks(found) if one.trainer == found["trainer"]}
    engines = [*dict.fromkeys(found["engines"].split(","))]
    steps, nodes, gpus = (int(found[flag]) for flag in ("steps", "nodes", "gpus"))
    devices = max(1, gpus * nodes)
    prompt, _, answer = found["columns"].partition(",")
    longest = 1024 if gpus else 64
    return {
        "experiment": name,
        "baseline": engines[0],
        "arms": {one: {"trainer": found["trainer"], "engine": one, "stack": stacks[one]} for one in engines},
        "workload": {
            "model": source_of(found["model"]),
            "data": {**source_of(found["data"]), "prompt_column": prompt, "answer_column": answer},
            "rewards": [_reward(one) for one in dict.fromkeys(found["rewards"].split(","))],
            "steps": steps,
            "batch_size": 8 * devices * -(-8 // devices),  # 8 prompts or more, as many on every device
            "num_generations": 8,
            "micro_batch_size": 8,
            "max_prompt_length": longest,
            "max_response_length": longest,
            "temperature": 1.0,
            "learning_rate": 1.0e-6,
            "beta": 0.0,
            "dtype": "bfloat16" if gpus else "float32",
            "save_steps": max(1, steps // 4),
            "nodes": nodes,
            "gpus_per_node": gpus,
        },
        "seeds": [0, 1],
        "warmup_steps": min(2, steps - 1),
    }


def _planned(raw: Mapping[str, Any]) -> Plan:
    plan = load_plan(raw)
    if impossible := preflight(plan).impossible:
        raise UserError("{0.what}: {0.why}; {0.change}".format(impossible[0]))
    return plan


@cache
def shipped_stacks(on_gpus: bool) -> list[Stack]:
    """The stacks for GPUs, or for a CPU: the latest release last, of equals the one whose name says nothing more."""
    fitting = [one for one in map(load_stack, stack_names()) if (one.cuda is not None) == on_gpus]
    release = re.compile(r"\d+")
    return sorted(fitting, key=lambda one: ([*map(int, release.findall(one.trainer_version))], -len(one.name)))


def _stacks(found: Answers) -> list[Stack]:
    return shipped_stacks(int(found["gpus"]) > 0)


def _trainers(found: Answers) -> list[str]:
    """The trainers with such stacks, the one with most stacks first."""
    return [trainer for trainer, _ in Counter(one.trainer for one in _stacks(found)).most_common()]


def _trainable(found: Answers, flag: str, choices: Sequence[str]) -> Iterator[str]:
    """The choices of a flag that train on these GPUs."""
    for choice in choices:
        with suppress(UserError):
            _planned(configuration(answers({**found, flag: choice}), "default"))
            yield choice


def _default_trainer(found: Answers) -> str:
    return next(_trainable(found, "trainer", _trainers(found)), _trainers(found)[0])


def _default_engines(found: Answers) -> str:
    """The trainer's engines that train on these GPUs; all if none does, so that the error says why."""
    return ",".join([*_trainable(found, "engines", _engines(found))] or _engines(found))


def _engines(found: Answers) -> list[str]:
    """The trainer's engines, in the registry's order (vLLM is the usual baseline)."""
    known = {one.engine for one in _stacks(found) if one.trainer == found["trainer"]}
    return [one.name for one in engines() if one.name in known]


def source_of(given: str) -> dict[str, str]:
    """`source`, and for a hub's `id@commit` also `revision`."""
    source, at, revision = given.rpartition("@")
    return {"source": source, "revision": revision} if at and source_kind(given) == "hub" else {"source": given}


def _reward(given: str) -> dict[str, str]:
    file, _, name = given.rpartition(":")
    return {"source": file, "function": name} if file else {"name": name}


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


_NUMBER = ("[1-9][0-9]{0,5}", "a whole number, 1 or more")
# The configuration itself checks what it names.
_ANY = (".+", "given")
# Flag -> its default, which sees the earlier answers, the pattern of its values, and that in words.
FLAGS: Mapping[str, tuple[Callable[[Answers], str], str, str]] = {
    "gpus": (lambda found: "0", "[0-9]{1,3}", "0 to 999"),
    "nodes": (lambda found: "1", *_NUMBER),
    "trainer": (_default_trainer, *_ANY),
    "engines": (_default_engines, *_ANY),
    "model": (lambda found: tuple(SHAPES)[int(found["gpus"]) > 0], *_ANY),
    "data": (lambda found: BUILTIN_DATA[0], *_ANY),
    "columns": (_default_columns, "[^,]+,[^,]+", "two names, PROMPT,ANSWER"),
    "rewards": (lambda found: "accuracy,format", *_ANY),
    "steps": (lambda found: "20", *_NUMBER),
    "partition": (lambda found: "", r"[\w.,-]*", "a Slurm partition"),
}
