"""The compiler of the tests' kernels, `g++-once`: what it gives is what g++ gives."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from .attempts import COMPILER


def compiled(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As PyTorch asks: a kernel in a cache's folder, and the library beside it."""
    source = folder / "inductor_cache" / "ab" / "kernel.main.cpp"
    source.parent.mkdir(parents=True)
    source.write_text(text)
    command = [COMPILER["CXX"], str(source), "-shared", "-fPIC", *arguments, "-o", str(source.with_suffix(".so"))]
    environment = {**os.environ, "TMPDIR": str(folder.parent)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def answer(folder: Path) -> int:
    told: int = ctypes.CDLL(str(folder / "inductor_cache" / "ab" / "kernel.main.so")).answer()
    return told


def test_the_same_kernel_is_compiled_once_and_another_is_not_taken_for_it(tmp_path: Path) -> None:
    text = 'extern "C" int answer() { return ANSWER; }'
    for name, arguments in (("a", "-DANSWER=42"), ("b", "-DANSWER=42"), ("c", "-DANSWER=43")):
        done = compiled(tmp_path / name, text, arguments)
        assert done.returncode == 0, done.stderr
    assert compiled(tmp_path / "d", text.replace("ANSWER;", "ANSWER + 2;"), "-DANSWER=42").returncode == 0
    assert [answer(tmp_path / name) for name in "abcd"] == [42, 42, 43, 44]
    (kept,) = tmp_path.glob("rolloutbench-tests-kernels-*")
    assert len(list(kept.iterdir())) == 3
