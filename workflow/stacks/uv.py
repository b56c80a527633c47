"""Runs uv with pip's own sources, and says what its failures mean for the person who started it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from workflow.stacks import sources

_QUIET = re.compile(r"^ [+~-] |^Using Python |^Using CPython|^Creating virtual|^Activate with|^$")
NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|os error (28|122)\b")
_NO_HASH = re.compile(r"Hash mismatch for `([^`]+)`")
_NO_FOLDER = re.compile(r"Failed to read `--find-links`[^\n]*")
_UNREACHABLE = re.compile(
    r"Failed to fetch|client error|dns error|timed out|[Cc]ould not connect|connectivity is disabled"
)
_NO_START = re.compile(r"Failed to inspect Python interpreter[^\n`]*`([^`]+)`")
_ADDRESS = re.compile(r"(?:https?|file)://[^\s`)]+")
_NOT_THERE = re.compile(r"(?:Because )?([\w.+=-]+ (?:was not found|has no usable wheels)|there is no version of [^ ]+)")

HOW_TO_SET_SOURCES = (
    "Sources are pip's own settings (see them with `python -m pip config debug`): index-url, extra-index-url and "
    "find-links in pip.conf, or PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS; UV_* variables go before them."
)


@dataclass(frozen=True)
class Uv:
    """uv, told to look where pip would look."""

    binary: str
    environ: dict[str, str]
    arguments: tuple[str, ...]

    @property
    def sources(self) -> str:
        """The configured sources in one line, without credentials."""
        return sources.described(self.environ, list(self.arguments))

    @property
    def may_ask_elsewhere(self) -> bool:
        """False where the user keeps uv off every index, or has chosen PyTorch's index for it."""
        return not ("--no-index" in self.arguments or {"UV_OFFLINE", "UV_TORCH_BACKEND"} & set(self.environ))

    def run(self, command: list[str], **how: Any) -> tuple[int, str]:
        """Exit status and stderr of `uv <command>`, run as `run` does."""
        return run([self.binary, *command], self.environ, **how)


def run(
    command: list[str],
    environ: Mapping[str, str],
    *,
    cwd: Path | None = None,
    stdin: str | None = None,
    fds: tuple[int, ...] = (),
    show: bool = False,
) -> tuple[int, str]:
    """Exit status and stderr, without passwords, of a program; `show` passes uv's progress on to our stderr.

    It inherits `fds`: a file lock among them is held until it has ended too, even if this program is killed.
    """
    process = subprocess.Popen(
        command,
        env=dict(environ),
        cwd=cwd,
        text=True,
        errors="replace",
        pass_fds=fds,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        if stdin is not None and process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
        for line in process.stderr:
            said.append(sources.redacted(line))
            # From its first error on, uv's words belong to the message that `explained` makes of them.
            show = show and not line.startswith("error:")
            if show and not _QUIET.match(line):
                sys.stderr.write("  " + said[-1])
        return process.wait(), "".join(said)
    finally:
        # Only an interruption finds it alive here; it must not write on while its folder is removed.
        if process.poll() is None:
            process.terminate()
            process.wait()
        process.stderr.close()


def last_lines(said: str, count: int = 12) -> str:
    """The end of what a program said, for a message."""
    return "\n".join(f"  {line}" for line in said.strip().splitlines()[-count:])


def configured_uv(*, main_index_first: bool = False) -> Uv:
    """uv with the sources that pip would use."""
    settings = sources.pip_settings()
    translated = sources.uv_environment(settings, main_index_first=main_index_first)
    # Where COLUMNS is exported, uv breaks its messages into lines, which the patterns above would not know.
    environ = {**os.environ, **translated, "UV_NO_WRAP": "1"}
    return Uv(find_uv(), environ, tuple(sources.uv_arguments(settings)))


def find_uv() -> str:
    """The uv beside this Python, else the first on PATH; UserError when there is none."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")
    if found is None:
        raise UserError(
            "uv is not installed; it is among envs/controller/requirements.lock: "
            f"`{sys.executable} -m pip install --require-hashes -r envs/controller/requirements.lock`"
        )
    return found


def torch_arguments(uv: Uv, requirement: str | None, backend: str | None, python: str) -> list[str]:
    """What makes uv ask PyTorch's own index, only when no configured source has that torch.

    `requirement` is the exact pin, as in `torch==2.13.0+cpu`; None where the environment has no torch.
    """
    if requirement is None or backend is None or not uv.may_ask_elsewhere:
        return []
    probe = ["pip", "compile", "-", "--no-deps", "--no-build", "--no-header", "--python-version", python]
    status, said = uv.run([*probe, *uv.arguments], stdin=requirement + "\n")
    if status == 0:
        return []
    if _NOT_THERE.search(said):
        return ["--torch-backend", backend]
    raise explained(said, f"looking for {requirement}", uv)


def explained(said: str, doing: str, uv: Uv) -> UserError:
    """The error that tells what uv's failure means and what to do, with the last of uv's own words."""
    if bad := _NO_HASH.search(said):
        what = (
            f"{bad[1]} is not the file that the lock names: its hash differs. Either the source serves another "
            "build of that version, or the file was changed; do not use it before you know which.\n"
            f"Sources: {uv.sources}."
        )
    elif NO_SPACE.search(said):
        what = (
            "the disk is full (or your quota is). uv needs space for its cache (UV_CACHE_DIR), for temporary files "
            "(TMPDIR) and for the environment itself."
        )
    elif _NO_FOLDER.search(said) or _UNREACHABLE.search(said):
        asked = _ADDRESS.search(said)
        what = (
            f"a package source could not be read: {asked[0] if asked else uv.sources}.\n{HOW_TO_SET_SOURCES} "
            "Behind a proxy: PIP_PROXY or HTTPS_PROXY."
        )
        if "pytorch" in said:
            what += (
                "\nPyTorch's own index was asked because no configured source has the torch wheel: a folder that "
                "holds it, in PIP_FIND_LINKS, will do."
            )
    elif missing := _NOT_THERE.search(said):
        what = f"no configured source has it: {missing[1]}.\nSources: {uv.sources}.\n{HOW_TO_SET_SOURCES}"
    elif broken := _NO_START.search(said):
        what = (
            f"{broken[1]} is on PATH and does not start. pyenv's shims are there for every release that it has, and "
            "start the chosen ones only: choose this one (`pyenv shell <release>`), or install Python (your system's "
            "package, a module, or `uv python install <release>`)."
        )
    else:
        what = "uv failed."
    return UserError(f"{doing}: {what}\nuv said:\n{last_lines(said)}")
