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


def test_a_kernel_of_another_clone_is_taken_with_the_header_that_it_shares(tmp_path: Path) -> None:
    """Two clones have the same stack at two paths; a stack with another lock has another header."""
    for clone, lock, value in (("a", "11", 42), ("b", "11", 42), ("c", "22", 44)):
        include = tmp_path / clone / ".stacks" / "tiny" / lock / "include"
        include.mkdir(parents=True)
        (include / "value.h").write_text(f"#pragma once\nstatic int value() {{ return {value}; }}\n")
        header = tmp_path / clone / "precompiled_headers" / f"{clone}.h"
        header.parent.mkdir()
        header.write_text("#include <value.h>\n")
        flags = [f"-I{include}", "-fPIC"]
        command = [COMPILER["CXX"], *flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"]
        done = subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, check=False)
        assert done.returncode == 0 and Path(f"{header}.gch").stat().st_size > 0, done.stderr
        (include / "value.h").write_text("#error the compiled header is not used\n")
        kernel = 'extern "C" int answer() { return value(); }'
        made = compiled(tmp_path / clone, kernel, *flags, "-Winvalid-pch", "-include", str(header))
        assert made.returncode == 0 and answer(tmp_path / clone) == value, made.stderr
    (kept,) = tmp_path.glob("rolloutbench-tests-kernels-*")
    assert sorted(path.suffix for path in kept.iterdir()) == [".gch", ".gch", ".so", ".so"]


def test_what_does_not_compile_fails_each_time(tmp_path: Path) -> None:
    for name in "ab":
        done = compiled(tmp_path / name, "int answer() { return nothing; }")
        assert done.returncode != 0 and "nothing" in done.stderr
    assert not list(tmp_path.glob("rolloutbench-tests-kernels-*/*"))


def test_the_rest_is_gccs_own() -> None:
    asked = [subprocess.check_output([gxx, "--version"], text=True) for gxx in ("g++", COMPILER["CXX"])]
    assert asked[0] == asked[1]
