"""Runs one stage on the GPU machine: `python3 -m gpu_kit.target STAGE`. Standard library only.

What a stage has finished stays in `build/gpu-kit-work`, and a second visit goes on there. Nothing is installed into the
machine's Python: the wheels go into an environment of their own that also sees the machine's packages.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT, read_json, write_json
from common.messages import unknown_name
from gpu_kit.gpu import VisitedGpu, seen_gpu
from gpu_kit.results import stage_lines
from gpu_kit.stage_run import StageRun
from gpu_kit.stages import BUNDLES, stage_named
from gpu_kit.trees import require_same_tree
from gpu_kit.wheels import unpack

_LINES = 10
_FREE_GIB = 2.0


@dataclass
class Visit:
    """One call on the target: the kit, the machine, and the folder that survives until the next call."""

    kit_folder: Path
    work: Path
    bundles: tuple[str, ...]
    kit: Mapping[str, Any]
    gpu: VisitedGpu | None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def env(self) -> Path:
        """The environment with the stage's bundles; one for each set, since engines need releases of their own."""
        return self.work / f"env-{'-'.join(self.bundles)}"

    @property
    def python(self) -> Path:
        """That environment's interpreter."""
        return self.env / "bin" / "python"


def main(arguments: list[str] | None = None) -> int:
    """Run a stage; 0, or 1 with one line that says where it failed."""
    given = _parser().parse_args(arguments)
    try:
        return run_stage(given.stage, given.kit, given.work, given.out, on_cpu=given.cpu)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1


def run_stage(name: str, kit_folder: Path, work: Path, out: Path, *, on_cpu: bool = False) -> int:
    """Check the kit and the machine, install the stage's wheels, run its tasks and write its results to `out`."""
    stage, began = stage_named(name), time.monotonic()
    kit = _read_kit(kit_folder, name)
    require_same_tree(ROOT, kit["tree"], kit["commit"])
    require_python(kit)
    if on_cpu and "cpu" not in kit["stages"][name]:
        rehearsed = [each for each, planned in kit["stages"].items() if "cpu" in planned]
        raise UserError(f"stage {name} has no twin for a CPU; --cpu is for {', '.join(rehearsed) or 'no stage of it'}")
    visit = Visit(kit_folder, work, stage.bundles, kit, None if on_cpu else _require_free_gpu())
    for bundle in stage.bundles:
        install(visit, bundle)
    visit.seconds["before the tasks"] = time.monotonic() - began
    run = StageRun(name, stage, visit.kit, visit.work / name, visit.python, visit.gpu)
    result = {
        "stage": name,
        "commit": kit["commit"],
        "device": visit.gpu and visit.gpu.as_dict(),
        "versions": _versions(visit),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()},
        **run.results(),
        "seconds": {key: round(value, 1) for key, value in visit.seconds.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", result)
    run.write_log(out / f"{name}.log")
    print("\n".join(stage_lines(result)[:_LINES]), flush=True)
    return 0 if all(task["ok"] for task in result["tasks"]) else 1


def _read_kit(folder: Path, stage: str) -> Mapping[str, Any]:
    try:
        kit: Mapping[str, Any] = read_json(folder / "kit.json")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}/kit.json cannot be read ({error}): carry it here with the parts") from None
    if stage not in kit["stages"]:
        raise UserError(f"{folder}: {unknown_name('stage', stage, list(kit['stages']))}; pack it: `python -m gpu_kit`")
    return kit


def require_python(kit: Mapping[str, Any]) -> None:
    """`UserError` if this Python or its torch is not the one that the wheels were chosen for."""
    here = ".".join(platform.python_version_tuple()[:2])
    if here != kit["python"]:
        raise UserError(
            f"the kit is for Python {kit['python']}, and {sys.executable} is {here}; start it with PYTHON=/path/to/"
            f"python{kit['python']}, or set PYTHON in gpu_kit/stages.py and pack again"
        )
    try:
        torch = importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        torch = "missing"
    if torch != kit["torch"]:
        raise UserError(
            f"the kit is for torch {kit['torch']}, and torch of {sys.executable} is {torch}; start it with PYTHON=, or "
            "set TORCH in gpu_kit/stages.py and pack again"
        )


def _require_free_gpu() -> VisitedGpu:
    gpu = seen_gpu()
    if gpu.used_gib > _FREE_GIB:
        raise UserError(
            f"another process uses {gpu.used_gib:.1f} GiB of the {gpu.name}; end it first (`nvidia-smi` names it): "
            "figures beside it would be wrong"
        )
    return gpu


def install(visit: Visit, name: str) -> None:
    """Install a bundle's wheels unless they are there."""
    entry, marker = visit.kit["bundles"][name], visit.env / f"installed-{name}.json"
    if marker.is_file() and read_json(marker) == entry["parts"]:
        return
    began = time.monotonic()
    wheels = unpack(entry["parts"], visit.kit_folder, visit.work / f"wheels-{name}")
    visit.seconds[f"joining {name}"] = time.monotonic() - began
    began = time.monotonic()
    site = _environment(visit.env)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--upgrade", "--target", str(site)]
    done = subprocess.run([*command, *map(str, wheels)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"bundle {name} of stack {BUNDLES[name].stack} could not be installed: {last}")
    shutil.rmtree(visit.work / f"wheels-{name}")
    visit.seconds[f"installing {name}"] = time.monotonic() - began
    write_json(marker, entry["parts"])


def _environment(folder: Path) -> Path:
    """The site-packages of an environment that sees this Python's packages after its own; also with `python -I`."""
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    if not (folder / "bin" / "python").exists():
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        (site / "machine.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    return site


def _versions(visit: Visit) -> dict[str, str]:
    names = ("torch", "transformers", "trl", "vllm", "sglang", "accelerate", "datasets", "numpy", "triton")
    code = (
        "import importlib.metadata as m, json, sys\n"
        "found = {d.metadata['Name']: d.version for d in reversed(list(m.distributions()))}\n"
        "print(json.dumps({n: found[n] for n in sys.argv[1:] if n in found}))"
    )
    command = [str(visit.python), "-c", code, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu_kit.sh", description=__doc__)
    parser.add_argument("stage")
    parser.add_argument("--kit", type=Path, default=ROOT / "build" / "gpu-kit")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu-kit-work")
    default = os.environ.get("OUT") or ROOT / "build" / "gpu-kit-results"
    parser.add_argument("--out", type=Path, default=Path(default), help="folder of the results (default: $OUT)")
    parser.add_argument("--cpu", action="store_true", help="rehearse the stage's small twin, without a GPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
