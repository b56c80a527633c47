"""Reads the users' own Python files, of rewards and of schedulers, whose text travels in each run's specification."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from symtable import symtable
from typing import Any

from common.errors import UserError
from common.messages import unknown_name
from node.own_reward_process import describe_error
from trainers.reward_settings import OwnReward
from trainers.workload import Workload
from workflow.config.imports import local_path

MOST_BYTES = 40_000
"""A specification travels as one argument of a command, which may have 131,072 bytes."""
# With one of these a module may have names that its text does not assign.
_NAMES_AS_IT_RUNS = re.compile(r"import\s*\(?\s*\*|\b(__getattr__|exec|globals?|setattr|__dict__)\b")
Read = Callable[[str, str], str]


def workload_json(workload: Workload, read: Read) -> dict[str, Any]:
    """A workload as a specification has it: each own reward with its file's name, text and hash, and with the columns
    of the data that it may take.

    So a run's fingerprint is of what the function does, not of where it lies, and a change of the file on the disk
    reaches no run that was planned before.
    """
    found = workload.for_spec()
    for reward, told in zip(workload.rewards, found["rewards"], strict=True):
        if isinstance(reward, OwnReward):
            told |= _told("workload.rewards", reward.source, "function", reward.function, read)
            if workload.data.columns:
                told["columns"] = list(workload.data.columns)
    return found


def options_json(options: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """An arm's options; one that is a class of the user's, `{source, class}`, with its file's name, text and hash."""
    return {
        name: value | _told(f"options.{name}", value["source"], "class", str(value["class"]), read)
        if isinstance(value, dict) and value.keys() == {"source", "class"}
        else value
        for name, value in options.items()
    }


def _told(setting: str, source: str, kind: str, name: str, read: Read) -> dict[str, str]:
    code = read(setting, source)
    _require_name(f"{setting}: {Path(source).name}", kind, name, code)
    return {"source": Path(source).name, "sha256": hashlib.sha256(code.encode()).hexdigest(), "code": code}


def read_own_file(setting: str, source: str) -> str:
    """The text of a user's Python file; a `UserError` that names the setting where there is none."""
    where = f"{setting}: {source}"
    if not str(source).endswith(".py"):
        raise UserError(f"{where} must be a Python file, whose name ends in .py")
    path = local_path(source)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{setting}: no such file: {source} (looked in {Path.cwd()}); give the path of a Python file"
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
def _require_name(where: str, kind: str, name: str, code: str) -> None:
    """A `UserError` where a file's text has no such function or class; nothing of it is run."""
    source = where.rpartition(": ")[2]
    try:
        symbols = symtable(code, source, "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{where} cannot be imported: {describe_error(error, source)}; correct the file") from None
    made = [one.get_name() for one in symbols if one.is_assigned()]
    imported = [one.get_name() for one in symbols if one.is_imported()]
    if name not in (*made, *imported) and not _NAMES_AS_IT_RUNS.search(code):
        raise UserError(f"{where}: {unknown_name(kind, name, made)}")
