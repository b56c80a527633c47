"""Makes Pythons with verl and without a GPU: `python tests/trainers/verl/environments.py lock|build [VERSION]`.

The environments of `env-<version>/` are made by uv from their locks, once per lock, below `.stacks/`. They are no
stacks: nothing trains in them, and Hydra's parser (antlr4 4.9) comes as a source archive only, which is built here.
"""

import hashlib
import math
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from workflow.runs.locks import try_lock
from workflow.stacks.uv import configured_uv, torch_arguments

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[2] / ".stacks" / "tests-verl"
VERSIONS = ("0.4.1", "0.9.1")
PYTHON = "3.11"
TORCH = "torch==2.13.0+cpu"
_SOURCES = ["--only-binary", ":all:", "--no-binary", "antlr4-python3-runtime"]


def build(version):
    """The interpreter of the environment with that verl; built first if it is not there (seconds with a warm cache)."""
    folder = HERE / f"env-{version}"
    lock = folder / "requirements.lock"
    final = CACHE / f"{version}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    python = final / "bin" / "python"
    if python.exists():
        return python
    CACHE.mkdir(parents=True, exist_ok=True)
    held = try_lock(CACHE / f"{version}.lock", patience_s=math.inf)  # as long as another process builds it
    assert held is not None
    with held:
        if python.exists():
            return python
        for old in CACHE.glob(f"{version}-*"):
            shutil.rmtree(old)
        making = final.with_name(f"{version}-making")
        uv = configured_uv()
        _uv(uv, ["venv", str(making), "--python", PYTHON, "--relocatable", "--no-python-downloads", "--no-project"])
        sync = ["pip", "sync", "--require-hashes", *_SOURCES, "--python", str(making / "bin" / "python")]
        _uv(uv, [*sync, *uv.arguments, *torch_arguments(uv, TORCH, "cpu", PYTHON), str(lock)])
        making.rename(final)
    return python


def lock(version):
    """Resolve that environment's requirements anew; pins that still fit stay."""
    uv = configured_uv(main_index_first=True)
    command = ["pip", "compile", "requirements.in", "--generate-hashes", "--quiet", "--python-version", PYTHON]
    command += [*_SOURCES, "--overrides", "overrides.txt", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--no-emit-build-options", "--custom-compile-command", f"python {Path(__file__).name} lock"]
    command += [*uv.arguments, *torch_arguments(uv, TORCH, "cpu", PYTHON), "--output-file", "requirements.lock"]
    _uv(uv, command, HERE / f"env-{version}")


def _uv(uv, command, cwd=None):
    status, said = uv.run(list(command), cwd=cwd)
    assert status == 0, said


if __name__ == "__main__":
    for wanted in sys.argv[2:] or VERSIONS:
        print({"lock": lock, "build": build}[sys.argv[1]](wanted))
