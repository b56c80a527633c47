"""A stack's processes have the stack's packages, never those of `pip install --user`.

A Python with a user site stands for a conda environment: a virtual environment has none.
"""

import os
import sys
import sysconfig

import pytest

from ..patience import run
from ..programs import executable
from .run_bench import RunBench

# Python imports it from the user site, if it looks there at all.
TOLD = "import sys\nwith open({seen!r}, 'a') as seen:\n    print(sys.orig_argv, file=seen)\n"


class Bench(RunBench):
    def with_a_user_site(self, seen):
        """Its stack's Python is one with a user site, which writes down whoever looks into it."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own = self.folder / "home" / ".local" / "lib" / version / "site-packages"
        own.mkdir(parents=True)
        (own / "usercustomize.py").write_text(TOLD.format(seen=str(seen)))
        python = self.folder / "stack" / "env" / "bin" / "python"
        # The libraries that the stand-ins import are those of the tests' own environment.
        packages = f'export PYTHONPATH="$PYTHONPATH:{sysconfig.get_path("purelib")}"\n'
        text = python.read_text().replace(sys.executable, sys._base_executable)
        python.write_text(text.replace("\n", f"\n{packages}", 1))


@pytest.mark.parametrize(
    "spread",
    ["alone", "by_torchrun", "beside_a_server", pytest.param("by_ray", marks=pytest.mark.full("a Ray of its own"))],
)
def test_no_process_of_a_training_looks_into_the_users_own_packages(spread, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)  # as make sets it
    home, seen = tmp_path / "home", tmp_path / "seen"
    options = ("private_nodes=true",) if spread == "by_ray" else ()
    head_env = {"HOME": str(home), "CUDA_VISIBLE_DEVICES": "0,1", "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    one = Bench(tmp_path, steps=2, head_env=head_env, options=options)
    if spread != "alone":
        getattr(one, f"spread_{spread}")()
    if spread in ("by_ray", "by_torchrun"):  # for workers and ranks; the GPUs are there in name only
        executable(tmp_path / "bin" / "nvidia-smi", "printf 'GPU 0: a\\nGPU 1: b\\n'")
        one.spec["workload"]["gpus_per_node"] = 2
    one.with_a_user_site(seen)
    # A Python of this kind finds it where nobody forbids it.
    run([sys._base_executable, "-c", ""], 60, env=one.head_env)
    assert seen.read_text().count("\n") == 1
    seen.unlink()
    try:
        launched = one.launch()
        assert launched.returncode == 0, launched.stderr
    finally:
        one.end()
    assert not seen.exists(), seen.read_text()
