"""A package without a wheel is built from the lock's own archive, with the stack's compilers, or nothing is begun."""

import inspect
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from workflow.stacks import build
from workflow.stacks.build import GIB_PER_JOB, build_settings, jobs_at_once
from workflow.stacks.definition import load_stack

from ..planted import INDEX_USER
from ..programs import executable
from .conftest import write_wheel

pytestmark = pytest.mark.full("packages built from their sources")

# A build backend inside the archive itself: no setuptools is needed, and what the build sees is in the wheel.
BACKEND = f"""
import base64, hashlib, os, subprocess, urllib.request, zipfile
from pathlib import Path

import rbt_alpha  # only there because the wheels of the lock are installed first

{inspect.getsource(write_wheel)}

def _reaches_out():
    try:
        urllib.request.urlopen(os.environ["RBT_OUTSIDE"], timeout=5)
    except OSError:
        return False
    return True


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    seen = {{key: os.environ.get(key) for key in ("TORCH_CUDA_ARCH_LIST", "MAX_JOBS", "PIP_NO_INDEX")}}
    seen["nvcc"] = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    seen["reaches_out"] = _reaches_out()
    return write_wheel(Path(wheel_directory), "rbt-kernel", "1.0", code=f"seen = {{seen!r}}\\n").name
"""


def write_sdist(folder, *, backend=BACKEND):
    """An archive of rbt-kernel 1.0 whose metadata can only be had by running it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": backend,
        "PKG-INFO": "Metadata-Version: 2.1\nName: rbt-kernel\nVersion: 1.0\n",
    }
    path = folder / "rbt_kernel-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"rbt_kernel-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def write_nvcc(root, release):
    executable(root / "bin" / "nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.1'")
    return root


EXTRA = (
    'cuda: "12.4"\nsource_builds: [rbt-kernel]\nsource_environment: {TORCH_CUDA_ARCH_LIST: "9.0", RBT_OUTSIDE: "URL"}\n'
)


@pytest.fixture
def kernel(site, index, tmp_path):
    """A locked stack of a wheel and a package that is built from source for CUDA 12.4; the machine has no nvcc."""
    index.add(write_wheel(tmp_path / "wheels", "rbt-alpha", "1.0"))
    index.add(write_sdist(tmp_path / "wheels"))
    folder = site.write_stack("rbt-alpha\nrbt-kernel\n", extra=EXTRA.replace("URL", index.url.replace(INDEX_USER, "")))
    stack = folder / "stack.yaml"
    stack.write_text(stack.read_text().replace("accelerator: cpu", "accelerator: cuda"))
    (folder / "uv.toml").write_text(
        '[[dependency-metadata]]\nname = "rbt-kernel"\nversion = "1.0"\nrequires-dist = ["rbt-alpha"]\n'
    )
    locked = site.run("lock", "tiny")
    # rbt_alpha is not here: the lock was made without running the archive's code.
    assert locked.returncode == 0, locked.stderr
    parts = [part for part in os.environ["PATH"].split(os.pathsep) if not (Path(part) / "nvcc").exists()]
    site.environ["PATH"] = os.pathsep.join(parts)
    for key in ("CUDA_HOME", "CUDA_PATH", "MAX_JOBS", "CXX"):
        site.environ.pop(key, None)
    return site


def with_cuda(site, root):
    return {"CUDA_HOME": str(root), "PATH": f"{root / 'bin'}{os.pathsep}{site.environ['PATH']}"}


def test_it_is_built_after_the_wheels_with_the_stacks_settings(kernel, tmp_path):
    built = kernel.build(**with_cuda(kernel, write_nvcc(tmp_path / "cuda", "12.4")), MAX_JOBS="3")
    assert built.returncode == 0, built.stderr
    assert "building rbt-kernel 1.0 from source, 3 compilers at once: 10-60 minutes" in built.stderr
    (folder,) = kernel.built()
    assert {path.name.partition("-")[0] for path in folder.iterdir()} == {"env", "verify", "verify.json"}
    code = "import json, rbt_kernel; print(json.dumps(rbt_kernel.seen))"
    told = subprocess.check_output([folder / "env" / "bin" / "python", "-I", "-c", code], text=True)
    assert json.loads(told) == {
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "MAX_JOBS": "3",
        "PIP_NO_INDEX": "1",
        "nvcc": "Cuda compilation tools, release 12.4, V12.4.1\n",
        "reaches_out": False,
    }


@pytest.mark.parametrize(
    ("release", "message"),
    [
        (None, "/cuda/bin (CUDA_HOME): make it known by CUDA_HOME or PATH (often `module load cuda/12.4`)\n"),
        ("12.6", "/nvcc is of CUDA 12.6, and CUDA 12.4 is needed: make it known by CUDA_HOME or PATH"),
    ],
)
def test_without_the_right_compiler_nothing_is_begun(kernel, index, tmp_path, release, message):
    index.asked.clear()
    # Without CUDA_HOME the machine's own /usr/local/cuda would be found.
    cuda = with_cuda(kernel, write_nvcc(tmp_path / "cuda", release) if release else tmp_path / "cuda")
    failed = kernel.build(**cuda)
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "tiny builds rbt-kernel from source for CUDA 12.4" in failed.stderr and message in failed.stderr
    assert not index.asked.is_set() and kernel.built() == []


def test_compilers_at_once_are_bound_by_memory_unless_told(kernel, monkeypatch):
    stack = load_stack("tiny", kernel.envs)
    assert build_settings(stack, {})["MAX_JOBS"] == str(jobs_at_once({}))
    assert build_settings(stack, {"MAX_JOBS": "7"})["MAX_JOBS"] == "7"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000)))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    assert 1 <= jobs_at_once({}) <= max(1, total // GIB_PER_JOB)
    granted = {"SLURM_MEM_PER_NODE": str(int(total) * 512), "SLURM_CPUS_PER_TASK": "64"}
    assert jobs_at_once(granted) <= max(1, total / 2 // GIB_PER_JOB), "a job has less than its machine"
    assert jobs_at_once({"SLURM_CPUS_PER_TASK": "1"}) == 1
    by_cpu = {"SLURM_MEM_PER_CPU": str(GIB_PER_JOB * 1024 // 2), "SLURM_CPUS_PER_TASK": "2"}
    assert jobs_at_once(by_cpu) == 1, "each CPU has memory for half a compiler"


def test_a_containers_memory_limits_the_compilers(tmp_path, monkeypatch):
    """Of its control group or one above, of either version, whatever the whole machine has free."""
    monkeypatch.setattr(build, "_free_gib", lambda: 1000.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "self").write_text("3:cpu:/other\n2:memory:/job/step\n0::/box/job\n")
    for file, text, jobs in (
        ("box/job/memory.max", "max", 64),
        ("memory/job/memory.limit_in_bytes", str(40 * 2**30), 5),
        ("box/memory.max", str(20 * 2**30), 2),
    ):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        assert jobs_at_once({}, tmp_path, tmp_path / "self") == jobs
