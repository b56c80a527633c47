"""Tries another release in a copy of a stack, compares both, and reports what changes; the stack itself never changes.

The copy is `<stack>-next` beside it, a stack of its own; the report is `results/upgrade-<stack>/upgrade.md`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from common.dotted import flatten
from common.errors import UserError
from common.files import ROOT
from engines import engines
from node.hf_training import ATTEMPT_FIELDS
from trainers.registry import trainer_named
from workflow.stacks.build import build
from workflow.stacks.contract import contract, downloaded, import_names, single_release, unpacked
from workflow.stacks.definition import ENVS, TRIAL, Stack, load_stack
from workflow.stacks.lockfile import parse_lock, refresh_lock

_FILES = ("requirements.in", "requirements.lock", "overrides.txt", "stack.yaml")
_ARMS = ("in-force", "next")
_WORKLOAD = {
    "model": {"source": "builtin:tiny-qwen2"},
    "data": {"source": "builtin:arithmetic", "rows": 64},
    "rewards": [{"name": "accuracy"}, {"name": "format"}],
    **{"steps": 8, "batch_size": 16, "num_generations": 4, "max_prompt_length": 64, "max_response_length": 32},
    **{"learning_rate": 1.0e-5, "beta": 0.04, "dtype": "float32", "save_steps": 8},
}


def upgrade(name: str, to: Sequence[str], stacks_dir: Path, envs: Path = ENVS, *, lock_only: bool = False) -> Path:
    """Resolves, checks, builds, trains and compares, and returns the report; without training for a GPU stack.

    `UserError` says which part failed. What was found before stays in the report.
    """
    stack = load_stack(name, envs)
    if name.endswith(TRIAL):
        raise UserError(f"{name} is a trial itself; give the stack in force, {name.removesuffix(TRIAL)}")
    wanted = [single_release(one) for one in to]
    report = _Report(ROOT / "results" / f"upgrade-{name}" / "upgrade.md", f"{name} with {', '.join(to)}")
    try:
        bounds = [line for one in wanted for line in trainer_bounds(stack, one)]
        report.add("Support", bounds or [f"{_trainer(stack)} {stack.trainer_version} sets no bound that forbids it."])
        report.add("Hooks", _hooks(wanted))
        next_ = _copied(stack, wanted, envs, overridden=bool(bounds))
        loosened = _resolved(stack, next_, wanted, envs)
        report.add("Packages", [*loosened, *changed_packages(stack.lock, next_.lock)])
        if lock_only or stack.accelerator != "cpu":
            report.add("Training", ["Not run: lock and contract only."])
            return report.path
        build(next_.name, stacks_dir, envs)
        build(stack.name, stacks_dir, envs)
        report.add("Verification", ["The new environment passes all checks of the stack."])
        runs = _trained(stack, next_, report)
        report.add("Timers", changed_timers(*runs))
        report.add("Settings", changed_settings(*runs))
    except UserError as error:
        report.add("Failed", [str(error)])
        first = str(error).splitlines()[0]
        raise UserError(f"{first}\n{name} is unchanged and stays in force\nFound so far: {report.path}") from error
    copies = ",".join(file for file in _FILES if (next_.folder / file).is_file())
    report.add("To put it in force", [f"In envs: `cp {next_.name}/{{{copies}}} {name}/`"])
    return report.path


class _Report:
    """A Markdown page that grows with each part."""

    def __init__(self, path: Path, title: str) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {title}\n", encoding="utf-8")

    def add(self, title: str, lines: Iterable[str]) -> None:
        """Writes a section, and shows it."""
        text = f"\n## {title}\n\n" + "".join(f"- {line}\n" for line in lines)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)
        print(text, end="", file=sys.stderr, flush=True)


def _version(wanted: Requirement) -> str:
    return next(iter(wanted.specifier)).version


def _trainer(stack: Stack) -> str:
    return trainer_named(stack.trainer).distribution


def trainer_bounds(stack: Stack, wanted: Requirement) -> list[str]:
    """The trainer's own requirements that forbid a release, from the metadata of its wheel."""
    trainer = _trainer(stack)
    if canonicalize_name(wanted.name) == canonicalize_name(trainer):
        return []
    name = f"{trainer}=={stack.trainer_version}"
    with tempfile.TemporaryDirectory(prefix="rolloutbench-upgrade-") as folder:
        wheel, _ = downloaded(name, Path(folder))
        metadata = next(unpacked(wheel, Path(folder) / "unpacked").glob("*.dist-info/METADATA"))
        lines = HeaderParser().parsestr(metadata.read_text(encoding="utf-8")).get_all("Requires-Dist") or []
    # A build for CPUs has another name than the release that the trainer names.
    alike = [set(engine.packages) for engine in engines() if wanted.name in engine.packages]
    names = {canonicalize_name(wanted.name), *(one for packages in alike for one in packages)}
    found = []
    for line in lines:
        one = Requirement(line)
        if canonicalize_name(one.name) in names and not one.specifier.contains(_version(wanted), prereleases=True):
            found.append(
                f"{wanted} is not supported by {name}, which asks for {one.name}{one.specifier}: held by contract and "
                "smoke run."
            )
    return list(dict.fromkeys(found))


def _copied(stack: Stack, wanted: Sequence[Requirement], envs: Path, *, overridden: bool) -> Stack:
    """The copy of the stack with the wanted releases; what an earlier trial left is replaced."""
    folder = envs / f"{stack.name}{TRIAL}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(stack.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "requirements.in"
    text = file.read_text(encoding="utf-8")
    for one in wanted:
        pattern = rf"^{re.escape(one.name)}(\[[^\]]*\])?\s*[=<>!~][^#\n]*?(\s*#.*)?$"
        text, count = re.subn(pattern, rf"{one.name}\1=={_version(one)}", text, count=1, flags=re.MULTILINE)
        text += "" if count else f"{one}\n"
        if canonicalize_name(one.name) == canonicalize_name(_trainer(stack)):
            declared = (folder / "stack.yaml").read_text(encoding="utf-8")
            line = f'trainer_version: "{_version(one)}"'
            (folder / "stack.yaml").write_text(re.sub(r"^trainer_version:.*$", line, declared, flags=re.MULTILINE))
    file.write_text(text, encoding="utf-8")
    if overridden:
        with (folder / "overrides.txt").open("a", encoding="utf-8") as overrides:
            overrides.write("".join(f"{one}\n" for one in wanted))
    return load_stack(folder.name, envs)


def _resolved(stack: Stack, next_: Stack, wanted: Sequence[Requirement], envs: Path) -> list[str]:
    """Resolves the copy's lock; if the stack's other pins forbid it, without them. Returns what was given up."""
    try:
        refresh_lock(next_.name, envs)
        return []
    except UserError as error:
        if "No solution found" not in str(error):
            raise
    trainer = canonicalize_name(_trainer(stack))
    kept = {canonicalize_name(one.name) for one in wanted}
    lines, given_up = [], []
    for line in (next_.folder / "requirements.in").read_text(encoding="utf-8").splitlines():
        pin = re.match(r"([A-Za-z0-9][\w.-]*)(\[[^\]]*\])?(==[^#]*)", line)
        if line.startswith("-c "):
            given_up.append(line)
        elif pin and canonicalize_name(pin[1]) == trainer:
            lines.append(pin[1] + pin[3])  # its extras pin an engine, and what that needs
            given_up += [f"{trainer}{pin[2]}"] if pin[2] else []
        elif pin and canonicalize_name(pin[1]) not in kept and "+" not in pin[3].partition(",")[0]:
            lines.append(pin[1] + (pin[2] or ""))
            given_up.append(pin[0].strip())
        else:
            lines.append(line)
    (next_.folder / "requirements.in").write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        refresh_lock(next_.name, envs)
    except UserError as error:
        cause = re.search(r"cause: (.*)", str(error), re.DOTALL)
        why = " ".join(cause[1].split()) if cause else str(error)
        raise UserError(f"{next_.name} has no solution, even without the stack's own pins: {why}") from error
    return [f"The stack's own pins forbid it; without {', '.join(given_up)}:"]


def changed_packages(old: Path, new: Path) -> list[str]:
    """The pins of two locks that differ, one a line."""
    before = {pin.name: pin.version for pin in parse_lock(old)}
    after = {pin.name: pin.version for pin in parse_lock(new)}
    return [
        f"{name}: {before.get(name, 'none')} -> {after.get(name, 'none')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ] or ["no pin changes"]


def _hooks(wanted: Sequence[Requirement]) -> list[str]:
    """The contract of each wanted package that has hooks."""
    lines = []
    for one in wanted:
        if canonicalize_name(one.name) in import_names():
            found = contract(str(one))
            lines += [found.summary(), *map(str, found.to_read)]
    return lines or ["No wanted package has hooks."]


def _trained(stack: Stack, next_: Stack, report: _Report) -> tuple[list[Path], list[Path]]:
    """Trains both stacks as arms of one experiment, adds its verdict, and returns the runs' folders of each."""
    folder = report.path.parent
    arms = {
        arm: {"trainer": stack.trainer, "engine": stack.engine, "stack": one.name}
        for arm, one in zip(_ARMS, (stack, next_), strict=True)
    }
    experiment = {"experiment": folder.name, "baseline": _ARMS[0], "arms": arms, "workload": _WORKLOAD}
    config = folder / "experiment.yaml"
    config.write_text(yaml.safe_dump({**experiment, "seeds": [0, 1], "warmup_steps": 1}, sort_keys=False))
    tools = Path(sys.executable).parent
    command = [str(tools / "snakemake"), "--profile", "profiles/local", "--configfile", str(config), "--logger", "calm"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise UserError(f"the smoke run failed; its experiment: {config}")
    verdict = [str(tools / "rolloutbench"), "verdict", str(config)]
    said = subprocess.run(verdict, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    report.add("Speed: both releases as arms of one experiment", [" ".join(said.split())])
    runs: dict[str, list[Path]] = {stack.name: [], next_.name: []}
    for spec in sorted(folder.glob("runs/*/spec.json")):
        runs[json.loads(spec.read_text(encoding="utf-8"))["stack"]].append(spec.parent)
    return runs[stack.name], runs[next_.name]


def changed_timers(old: Sequence[Path], new: Sequence[Path]) -> list[str]:
    """The phases that only the runs of one release have."""
    before, after = (set().union(*map(_phases, runs)) for runs in (old, new))
    lost, more = sorted(before - after), sorted(after - before)
    return [*(f"lost: {name}" for name in lost), *(f"new: {name}" for name in more)] or [
        f"both have the same {len(before)}"
    ]


def _phases(run: Path) -> set[str]:
    lines = [line for file in run.glob("attempts/*/metrics.jsonl") for line in file.read_text("utf-8").splitlines()]
    scalars = [key for line in lines for key in json.loads(line)["scalars"] if key.startswith("timing_s/")]
    return {*scalars, *(phase for line in lines for phase in json.loads(line)["phases"])}


def changed_settings(old: Sequence[Path], new: Sequence[Path]) -> list[str]:
    """The final settings of trainer and engine that differ between the runs of both releases, by seed."""
    found: dict[str, str] = {}
    for before, after in zip(old, new, strict=True):
        was, now = _settings(before), _settings(after)
        for key in sorted(was.keys() | now.keys()):
            if was.get(key) != now.get(key):
                found[key] = f"{key}: {was.get(key, 'none')} -> {now.get(key, 'none')}"
    return list(found.values()) or ["no setting of trainer or engine differs"]


def _settings(run: Path) -> dict[str, Any]:
    resolved = json.loads((run / "done.json").read_text(encoding="utf-8"))["resolved"]
    flat = flatten({part: resolved[part] for part in ("trainer", "engine")})
    return {key: value for key, value in flat.items() if key.rpartition(".")[2] not in ATTEMPT_FIELDS}
