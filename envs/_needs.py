"""Finds what a stack needs of the machine while it runs: compilers, headers, libraries.

Runs in any Python 3.10 or later with the standard library alone: in the controller's before a build, in the stack's
on a compute node. As a program it prints what lacks, as JSON:

    python -I envs/_needs.py --cuda 13.0 nvcc c++ python-headers
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_PATIENCE_S = 600
"""For a compiler that hangs: on a busy machine one that works may need more than a minute."""
_LAYER = ", or build the stack with its conda layer (envs.backend: conda)"
_USUAL_CUDA = Path("/usr/local/cuda")
_RELEASE = re.compile(r"\d+\.\d+")


@dataclass(frozen=True)
class Lack:
    """Something that is needed and not there: the line says what, why and the remedy."""

    need: str
    line: str
    debian: str | None
    """Debian's package, if it has one that will do."""


def lacks(needs: Iterable[str], cuda: str | None = None, *, exact: bool = False, layer: bool = False) -> list[Lack]:
    """What of the needs this machine and environment lack.

    `cuda`: the release that nvcc is to be of, its major number alone unless `exact`. `layer`: the stack has a conda
    layer that would bring it.
    """
    found = []
    for need in needs:
        trouble, remedy, debian = _NEEDS[need]
        why = _nvcc_trouble(cuda, exact) if need == "nvcc" else trouble()
        if why is not None:
            found.append(Lack(need, f"{why}: {remedy.format(cuda=cuda)}{_LAYER if layer else ''}", debian))
    return found


def find_nvcc() -> str | None:
    """The CUDA compiler that torch and FlashInfer take: CUDA_HOME's alone where it is set, else PATH's, else the usual.

    The environment's own programs count as first on PATH, as they are in every process of a stack.
    """
    if home := _cuda_home():
        return _nvcc_in(Path(home) / "bin")
    return _nvcc_in(Path(sys.prefix) / "bin") or shutil.which("nvcc") or _nvcc_in(_USUAL_CUDA / "bin")


def _cuda_home() -> str | None:
    return os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")


def _nvcc_in(folder: Path) -> str | None:
    return str(folder / "nvcc") if os.access(folder / "nvcc", os.X_OK) else None


def nvcc_release() -> str | None:
    """Release of the CUDA compiler, such as "12.4"; None where there is none."""
    nvcc = find_nvcc()
    if nvcc is None:
        return None
    output = _output([nvcc, "--version"])[1]
    release = re.search(rf"release ({_RELEASE.pattern})", output)
    return release[1] if release else f"not understood: {output.strip()[-80:]}"


def _nvcc_trouble(cuda: str | None = None, exact: bool = False) -> str | None:
    wanted = str(cuda) if exact else str(cuda).partition(".")[0]
    release = nvcc_release()
    if release is None:
        home = _cuda_home()
        return f"there is no nvcc of CUDA {wanted}{f' in {home}/bin (CUDA_HOME)' if home else ''}"
    if not _RELEASE.fullmatch(release):
        return f"{find_nvcc()} is of an unknown release, and CUDA {wanted} is needed"
    if cuda is not None and (release if exact else release.partition(".")[0]) != wanted:
        return f"{find_nvcc()} is of CUDA {release}, and CUDA {wanted} is needed"
    return None


def _compiler_trouble(variable: str, candidates: list[str], language: str, program: str) -> str | None:
    """`candidates`: each must be there, as libraries call one or the other, unless the variable names one."""
    named = os.environ.get(variable)
    for compiler in [named] if named else candidates:
        command = compiler.split()
        if not command or shutil.which(command[0]) is None:
            return f"there is no {language} compiler ({compiler})"
        # A compiler without its library's headers is there and of no use.
        code, output = _output([*command, "-x", language.lower(), "-fsyntax-only", "-"], program)
        if code != 0:
            return f"the {language} compiler {compiler} does not compile ({_last_line(output)})"
    return None


def _cpp_trouble() -> str | None:
    return _compiler_trouble("CXX", ["c++", "g++"], "C++", "#include <vector>\nint main() {}\n")


def _c_trouble() -> str | None:
    # Triton takes CC, else gcc, else clang.
    found = [name for name in ("gcc", "clang") if shutil.which(name)]
    return _compiler_trouble("CC", found[:1] or ["gcc"], "C", "#include <stdio.h>\nint main(void) { return 0; }\n")


def _ninja_trouble() -> str | None:
    return None if shutil.which("ninja") else "there is no ninja on PATH"


def _headers_trouble() -> str | None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return None if header.is_file() else f"Python's headers are not there ({header})"


def _numa_trouble() -> str | None:
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        return f"libnuma.so.1 does not load ({_last_line(str(error))})"
    return None


_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_NEEDS: dict[str, tuple[Callable[[], str | None], str, str | None]] = {
    "nvcc": (_nvcc_trouble, "make it known by CUDA_HOME or PATH (often `module load cuda/{cuda}`)", None),
    "c++": (_cpp_trouble, "install g++ (Debian: apt-get install g++) or load its module", "g++"),
    "cc": (_c_trouble, "install gcc (Debian: apt-get install gcc libc6-dev) or load its module", "gcc"),
    "ninja": (_ninja_trouble, "install it (Debian: apt-get install ninja-build)", "ninja-build"),
    "python-headers": (
        _headers_trouble,
        f"install them (Debian: apt-get install {_PYTHON}-dev; other systems: {_PYTHON}-devel)",
        f"{_PYTHON}-dev",
    ),
    "libnuma": (
        _numa_trouble,
        "install it (Debian: apt-get install libnuma1; other systems: numactl-libs)",
        "libnuma1",
    ),
}


def _output(command: list[str], given: str = "") -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stdout + done.stderr


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1].strip()[:200]


def main() -> int:
    """Prints a JSON list of {need, line, debian}; 0 whether or not something lacks."""
    parser = argparse.ArgumentParser(description="Finds what this machine lacks for a stack.")
    parser.add_argument("needs", nargs="*", metavar="NEED", help=", ".join(_NEEDS))
    parser.add_argument("--cuda", help="CUDA's release, as in 13.0")
    parser.add_argument("--exact", action="store_true", help="nvcc has to be of that very release")
    parser.add_argument("--layer", action="store_true", help="the stack has a conda layer: name it among the remedies")
    given = parser.parse_args()
    found = lacks(given.needs, given.cuda, exact=given.exact, layer=given.layer)
    print(json.dumps([vars(lack) for lack in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
