"""A stack's run-time environment: the same for its check, its jobs and what they start."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UserError
from common.stack_environment import cache_folder, environment_in
from workflow.job.training import trainer_environment
from workflow.stacks.verification import run_in_stack

from .conftest import PYTHON, write_wheel

LIBRARIES = "nvidia/cu13/lib"
RUNTIME = "librbtrt.so.13"
# As SGLang starts its schedulers: whatever the shell is, the loader must find what the preloaded library needs.
PROBE = """Probe(
    'a preloaded library loads', 'rbt-cuda', 0,
    lambda: __import__('subprocess').run(
        ['/bin/sh', '-c', 'true'], env={**__import__('os').environ, 'LD_PRELOAD': __import__('rbt_cuda').PRELOAD}
    ).returncode,
)"""
PATHS = 'run_paths:\n  LD_LIBRARY_PATH: ["{site-packages}/nvidia/cu13/lib"]\n  LIBRARY_PATH: ["{conda}/lib"]\n'


def preloaded_library(folder):
    """A library to preload, made here, that needs another one and does not say where that lies; and that one."""
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("a library to preload needs a C compiler (Debian: apt-get install gcc libc6-dev)")
    runtime, preload = folder / "runtime" / RUNTIME, folder / "preload" / "librbtpreload.so"
    for path, text, linked in (
        (runtime, "int rbt_runtime(void) { return 13; }\n", [f"-Wl,-soname,{RUNTIME}"]),
        (preload, "int rbt_runtime(void);\nint rbt_hook(void) { return rbt_runtime(); }\n", [str(runtime)]),
    ):
        path.parent.mkdir(parents=True)
        source = path.with_suffix(".c")
        source.write_text(text)
        subprocess.run([cc, "-shared", "-fPIC", "-o", path, source, *linked], check=True)
    return preload, runtime


@pytest.fixture
def preloading(site, index, tmp_path):
    """A locked stack of one wheel: a library to preload, as torch_memory_saver's, and the runtime that it needs."""
    preload, runtime = preloaded_library(tmp_path / "made")
    code = "from pathlib import Path\nPRELOAD = str(Path(__file__).with_name('librbtpreload.so'))\n"
    files = {preload.name: preload.read_bytes(), f"{LIBRARIES}/{RUNTIME}": runtime.read_bytes()}
    wheel = write_wheel(tmp_path / "wheels", "rbt-cuda", "1.0", code=code, files=files)
    site.write_locked(index, wheel, probes=f"[{PROBE}]")
    return site


@pytest.mark.full("stacks are built")
def test_what_a_preloaded_library_needs_is_found_in_every_process(preloading, tmp_path, monkeypatch):
    before = preloading.build()
    assert before.returncode == 1 and "a preloaded library loads: expected 0, got 127" in before.stderr
    stack = preloading.envs / "tiny" / "stack.yaml"
    stack.write_text(stack.read_text() + PATHS)
    after = preloading.build()
    assert after.returncode == 0, after.stderr
    folder = Path(after.stdout.strip())
    libraries = folder / "env" / "lib" / f"python{PYTHON}" / "site-packages" / LIBRARIES
    verdict = json.loads((folder / "verify.json").read_text())
    listed = str(libraries).replace(f"{folder}/env", "{env}")
    assert verdict["run"]["paths"] == {"LD_LIBRARY_PATH": [listed]}, "no conda layer, no path of it"

    # A job's trainer, its Ray and the shells that they start.
    order = {"python": str(folder / "env" / "bin" / "python"), "cwd": "/", "cpus": 1, "env": {}}
    order |= {"spec": {"workload": {}}}
    for inherited in ({}, {"LD_LIBRARY_PATH": "/site/lib"}):
        env = trainer_environment(order, {"PATH": os.environ["PATH"]} | inherited)
        assert env["LD_LIBRARY_PATH"].split(":") == [str(libraries), *inherited.values()]
        code = "import os, rbt_cuda; print(rbt_cuda.PRELOAD)"
        preload = subprocess.check_output([order["python"], "-I", "-c", code], env=env, text=True).strip()
        shell = ["/bin/sh", "-c", "/bin/sh -c true"]
        assert subprocess.run(shell, env=env | {"LD_PRELOAD": preload}, check=False).returncode == 0
        bare = {key: value for key, value in env.items() if key != "LD_LIBRARY_PATH"}
        assert subprocess.run(shell, env=bare | {"LD_PRELOAD": preload}, check=False).returncode == 127

    # What prepares inputs and settings before a job: its Python itself starts under the preload.
    with monkeypatch.context() as patched:
        patched.setenv("LD_PRELOAD", preload)
        assert run_in_stack(folder / "verify.json", "this")

    # The check by hand says that its process lacks the path, instead of passing what jobs would not have.
    program = [order["python"], "-I", preloading.envs / "tiny" / "verify.py", "--out", tmp_path / "out.json"]
    assert subprocess.run(program, env={"PATH": os.environ["PATH"]}, check=False).returncode == 1
    failed = {
        each["name"]: each["got"]
        for each in json.loads((tmp_path / "out.json").read_text())["checks"]
        if not each["ok"]
    }
    assert "python -m workflow.stacks verify" in failed[f"LD_LIBRARY_PATH has {listed}"]
    again = preloading.run(
        "verify", "tiny", "--out", str(tmp_path / "again.json"), "--stacks-dir", str(preloading.stacks)
    )
    assert again.returncode == 0, again.stderr


def test_paths_and_caches_of_a_process(tmp_path):
    run = {"paths": {"LD_LIBRARY_PATH": ["/a", "/b"]}, "caches": {"TRITON_CACHE_DIR": "triton"}, "cache": "s-0123"}
    told = {"environment": {"LD_LIBRARY_PATH": "/conda"}, "run": run}
    environ = {"PATH": "/bin", "LD_LIBRARY_PATH": "/site", "ROLLOUTBENCH_CACHE_DIR": str(tmp_path)}
    env = environment_in(Path("/stack/env"), told, environ)
    assert env["LD_LIBRARY_PATH"] == "/a:/b:/conda"
    assert environment_in(Path("/stack/env"), told, env) == env | {"LD_LIBRARY_PATH": "/a:/b:/conda"}
    # An empty part would be the working directory.
    del told["environment"]
    assert (
        environment_in(Path("/s/env"), told, {"LD_LIBRARY_PATH": ":/site:/a:"} | environ)["LD_LIBRARY_PATH"]
        == "/a:/b:/site"
    )
    assert env["TRITON_CACHE_DIR"] == str(cache_folder("s-0123", environ) / "triton")
    assert Path(env["TRITON_CACHE_DIR"]).relative_to(tmp_path).parts[0] == f"rolloutbench-{os.getuid()}"
    assert (tmp_path / f"rolloutbench-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    other = environment_in(Path("/stack/env"), {"run": run | {"cache": "s-4567"}}, environ)
    assert other["TRITON_CACHE_DIR"] != env["TRITON_CACHE_DIR"], "a cache for each stack and lock"


def test_a_folder_of_caches_that_others_can_write_to_is_refused(tmp_path):
    own = tmp_path / f"rolloutbench-{os.getuid()}"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    with pytest.raises(
        UserError, match=r"must be a folder that only you can write to; remove it, or set .*CACHE_DIR to a disk"
    ):
        cache_folder("s", {"ROLLOUTBENCH_CACHE_DIR": str(tmp_path)})
    own.rmdir()
    own.write_text("")
    with pytest.raises(UserError, match=r"cannot be created in .*; set .*CACHE_DIR"):
        cache_folder("s", {"ROLLOUTBENCH_CACHE_DIR": str(tmp_path)})


HOLD = """
import os, sys
from common.stack_environment import cache_folder
print(cache_folder("s-0123", os.environ), cache_folder("s-0123", os.environ), flush=True)
sys.stdin.read()
"""


def test_runs_at_the_same_time_have_caches_of_their_own_and_later_ones_find_them_again(tmp_path):
    environ = os.environ | {"ROLLOUTBENCH_CACHE_DIR": str(tmp_path)}

    def start():
        run = subprocess.Popen(
            [sys.executable, "-c", HOLD], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        one, again = run.stdout.readline().split()
        assert one == again, "the processes of a run share it"
        return run, Path(one).name

    (first, its), (second, other) = start(), start()
    assert (its, other) == ("s-0123", "s-0123.1")
    first.kill()
    first.communicate()
    third, found = start()
    assert found == its
    for run in (second, third):
        run.communicate()
