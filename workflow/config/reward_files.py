"""Reads the files of a workload's own rewards, whose text travels in each run's specification."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from symtable import symtable
from typing import Any

from common.errors import UserError
from common.messages import unknown_name
from node.own_reward_process import described
from trainers.workload import OwnReward, Workload
from workflow.config.imports import local_path

MOST_BYTES = 40_000
"""A specification travels as one argument of a command, which may have 131,072 bytes."""
# With one of these a module may have names that its text does not assign.
_NAMES_AS_IT_RUNS = re.compile(r"import\s*\(?\s*\*|\b(__getattr__|exec|globals?|setattr|__dict__)\b")


def workload_json(workload: Workload, read: Callable[[str], str]) -> dict[str, Any]:
    """A workload as a specification has it: each own reward with its file's name, text and hash, and with the columns
    of the data that it may take.

    So a run's fingerprint is of what the function does, not of where it lies, and a change of the file on the disk
    reaches no run that was planned before.
    """
    found = workload.of_a_spec()
    for reward, told in zip(workload.rewards, found["rewards"], strict=True):
        if isinstance(reward, OwnReward):
            code = read(reward.source)
            _require_function(Path(reward.source).name, reward.function, code)
            sha256 = hashlib.sha256(code.encode()).hexdigest()
            told |= {"source": Path(reward.source).name, "sha256": sha256, "code": code}
            if workload.data.columns:
                told["columns"] = list(workload.data.columns)
    return found


def read_reward_file(source: str) -> str:
    """The text of a user's file of rewards; a `UserError` where there is none."""
    where, path = f"workload.rewards: {source}", local_path(source)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"workload.rewards: no such file: {source} (looked in {Path.cwd()}); give the path of a Python file"
        ) from None
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}; give the path of a Python file") from None
    if len(content) > MOST_BYTES:
        raise UserError(
            f"{where} is too large: {len(content):,} bytes of at most {MOST_BYTES:,}, since its text travels in each "
            "run's specification; put data and helpers into a package of the stack"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not text in UTF-8 (byte {error.start}); save it as UTF-8") from None


@cache
def _require_function(source: str, function: str, code: str) -> None:
    """A `UserError` where a file's text has no such function; nothing of it is run."""
    try:
        symbols = symtable(code, source, "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        where = f"workload.rewards: {source} cannot be imported"
        raise UserError(f"{where}: {described(error, source)}; correct the file") from None
    made = [one.get_name() for one in symbols if one.is_assigned()]
    imported = [one.get_name() for one in symbols if one.is_imported()]
    if function not in (*made, *imported) and not _NAMES_AS_IT_RUNS.search(code):
        raise UserError(f"workload.rewards: {source}: {unknown_name('function', function, made)}")
