"""Writes the kit: wheels in parts, and the runs of every stage, planned here so that the target needs no controller."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from common.errors import UserError
from common.files import ROOT, write_json
from common.redaction import without_secrets
from engines import engine_named
from gpu_kit.stages import BUNDLES, PLATFORM, PYTHON, STAGES, TORCH, Bundle, Stage
from gpu_kit.trees import tree_hashes
from gpu_kit.wheels import pack, trim_wheel
from node.hardware import git_state
from trainers import driver_module
from workflow.config.plan import Plan, load_plan
from workflow.config.reading import read_yaml
from workflow.stacks.definition import ENVS, load_stack
from workflow.stacks.lockfile import Pin, check_lock
from workflow.stacks.uv import HOW_TO_SET_SOURCES, end_of_output

PART_MIB = 48
"""An upload holds 64 MiB, and the working tree is part of it."""
_MIB = 2**20
_ON_A_CPU = {"model": {"source": "builtin:tiny-qwen2"}, "gpus_per_node": 0, "gpu": None, "dtype": "float32"}
_SMALL = {"batch_size": 16, "micro_batch_size": 8, "max_response_length": 32}


def write_kit(out: Path, names: Iterable[str] = STAGES) -> dict[str, Any]:
    """Write the stages' parts and kit.json to `out`; returns kit.json's content."""
    stages = {name: STAGES[name] for name in names}
    out.mkdir(parents=True, exist_ok=True)
    (out / "kit.json").unlink(missing_ok=True)
    bundles = dict.fromkeys(name for stage in stages.values() for name in stage.bundles)
    state = git_state() or {"commit": "unknown", "dirty": True}
    kit = {
        "commit": str(state["commit"])[:12] + (" with changes" if state["dirty"] else ""),
        "tree": tree_hashes(ROOT),
        "python": PYTHON,
        "torch": TORCH,
        "bundles": {name: write_bundle(name, BUNDLES[name], out) for name in bundles},
        "stages": {name: planned_stage(stage) for name, stage in stages.items()},
    }
    write_json(out / "kit.json", kit)
    return kit


def write_bundle(name: str, bundle: Bundle, out: Path) -> dict[str, Any]:
    """Download, trim and pack one bundle; its entry in kit.json."""
    wheels = _download(bundle, out / "wheels" / name)
    left_out: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory(dir=out) as folder:
        for wheel, package in wheels.items():
            left_out |= trim_wheel(wheel, bundle.without.get(package, ()), Path(folder, wheel.name))
        parts = pack(list(Path(folder).iterdir()), out, name, PART_MIB * _MIB)
    return {
        "stack": bundle.stack,
        "wheels": sorted(wheel.name for wheel in wheels),
        "bytes": sum(wheel.stat().st_size for wheel in wheels),
        "left_out": left_out,
        "parts": parts,
    }


def _download(bundle: Bundle, folder: Path) -> dict[Path, str]:
    """The bundle's wheels, with the lock's hashes, and the package of each; files that are there are kept."""
    pins, without_wheel = _pins(bundle), load_stack(bundle.stack, ENVS).source_builds
    _fetch([pin for pin in pins if pin.name not in without_wheel], folder)
    for pin in pins:
        if pin.name in without_wheel:
            _build(pin, folder)
    packages = {path: str(parse_wheel_filename(path.name)[0]) for path in folder.glob("*.whl")}
    return {path: name for path, name in packages.items() if name in {pin.name for pin in pins}}


def _fetch(pins: Iterable[Pin], folder: Path) -> None:
    """Download a wheel of each pin for the target, by its hash; index, proxy and passwords are pip's own settings."""
    folder.mkdir(parents=True, exist_ok=True)
    # pip takes only the platforms that are named; manylinux2014, which is 2_17, includes the older names.
    minor, machine = PLATFORM.removeprefix("manylinux_2_").split("_", 1)
    names = [f"manylinux_2_{older}" for older in range(int(minor), 17, -1)]
    platforms = [f"--platform={each}_{machine}" for each in (*names, "manylinux2014", "linux")]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("".join(pin.requirement for pin in pins))
        listed.flush()
        command = [sys.executable, "-P", "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--require-hashes", "--implementation=cp", f"--python-version={PYTHON}"]
        command += ["--no-cache-dir", *platforms, "--dest", str(folder), "-r", listed.name]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        said = end_of_output(without_secrets(done.stderr), 6)
        raise UserError(f"a wheel could not be downloaded; pip said:\n{said}\n{HOW_TO_SET_SOURCES}")


def _build(pin: Pin, folder: Path) -> None:
    """Build the wheel of a source archive in pure Python, by the archive's hash."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write(pin.requirement)
        listed.flush()
        command += ["--require-hashes", "--wheel-dir", str(folder), "-r", listed.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{pin.name} {pin.version} could not be built as a wheel: {end_of_output(done.stderr, 1)}")


def _pins(bundle: Bundle) -> list[Pin]:
    pins = {pin.name: pin for pin in check_lock(bundle.stack, ENVS)}
    if missing := [package for package in bundle.packages if package not in pins]:
        raise UserError(f"envs/{bundle.stack}/requirements.lock has no {missing[0]}; correct gpu_kit/stages.py")
    return [pins[package] for package in bundle.packages]


def planned_stage(stage: Stage) -> dict[str, Any]:
    """The stage's runs and inputs; with `cpu`, a small twin that runs anywhere, to rehearse."""
    raw = read_yaml(ROOT / stage.experiment)
    planned = _planned(load_plan(raw), stage)
    if stage.probes:
        planned["cuda"] = load_stack(stage.probes, ENVS).cuda
    if stage.rehearsed:
        planned["cpu"] = _planned(load_plan(_on_a_cpu(raw)), stage)
    return planned


def _on_a_cpu(raw: Mapping[str, Any]) -> dict[str, Any]:
    arms = {
        name: {**arm, "stack": f"{arm['stack']}-cpu", "options": {}}
        for name, arm in raw["arms"].items()
        if engine_named(arm["engine"]).in_trainer
    }
    return {**raw, "arms": arms, "workload": {**raw["workload"], **_ON_A_CPU, **_SMALL}}


def _planned(plan: Plan, stage: Stage) -> dict[str, Any]:
    runs = {task.run_id: plan.runs[task.run_id] for task in stage.tasks if task.run_id in plan.runs}
    return {
        "runs": {
            run_id: {
                "spec": run.spec,
                "module": driver_module(run.spec["job_module"]),
            }
            for run_id, run in runs.items()
        },
        "inputs": {run.inputs_id: plan.inputs[run.inputs_id] for run in runs.values()},
    }


def kit_lines(kit: Mapping[str, Any], out: Path) -> list[str]:
    """What was written, for people."""
    lines = []
    for name, bundle in kit["bundles"].items():
        size = sum(part["bytes"] for part in bundle["parts"])
        lines.append(
            f"{name}: {len(bundle['wheels'])} wheels of {bundle['bytes'] / _MIB:.0f} MiB in {len(bundle['parts'])} "
            f"parts of {size / _MIB:.0f} MiB"
        )
        lines += [
            f"  left out: {pattern} ({found['files']} files, {found['bytes'] / _MIB:.1f} MiB)"
            for pattern, found in bundle["left_out"].items()
        ]
    for name, stage in STAGES.items():
        if name in kit["stages"]:
            parts = sum(len(kit["bundles"][bundle]["parts"]) for bundle in stage.bundles)
            lines.append(f"stage {name}: {parts} uploads, at most {stage.limit_s} s: {stage.title}")
    return [*lines, f"{out}: carry kit.json and a stage's parts, then run scripts/gpu_kit.sh STAGE there (docs/gpu.md)"]
