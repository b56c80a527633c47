"""Reads the user's own Python files (rewards, schedulers); their text becomes part of each run's specification."""

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
"""A specification is one argument of a command, and Linux allows 131,072 bytes."""
# A module with one of these may define names at run time.
_DYNAMIC_NAMES = re.compile(
    r"import\s*\(?\s*\*|\b(__getattr__|exec|globals?|setattr|__dict__)\b|\borms(\.|\s*\[\s*[^'\"\s])"
)
# ms-swift's registry of rewards; a name in it is a function's as well.
_REGISTERED = re.compile(r"^\s*orms\s*\[\s*['\"](\w+)['\"]\s*\]\s*=[^=]", re.MULTILINE)
Read = Callable[[str, str], str]


def workload_json(workload: Workload, read: Read) -> dict[str, Any]:
    """A workload for a specification: each own reward has its file's name, text and hash, and the data's columns.

    A run's fingerprint therefore depends on the function's code, not on its path, and a change of the file does not
    affect runs that are already planned.
    """
    spec = workload.for_spec()
    for reward, entry in zip(workload.rewards, spec["rewards"], strict=True):
        if isinstance(reward, OwnReward):
            entry |= _file_json("workload.rewards", reward.source, "function", reward.function, read)
            if workload.data.columns:
                entry["columns"] = list(workload.data.columns)
    return spec


def options_json(options: Mapping[str, Any], read: Read) -> dict[str, Any]:
    """An arm's options for a specification; a user's class, `{source, class}`, has its file's name, text and hash."""
    found = dict(options)
    for name, value in options.items():
        if isinstance(value, dict) and value.keys() == {"source", "class"}:
            found[name] = value | _file_json(f"options.{name}", value["source"], "class", str(value["class"]), read)
    return found


def _file_json(setting: str, source: str, kind: str, name: str, read: Read) -> dict[str, str]:
    code = read(setting, source)
    _require_name(f"{setting}: {Path(source).name}", kind, name, code)
    return {"source": Path(source).name, "sha256": hashlib.sha256(code.encode()).hexdigest(), "code": code}


def read_own_file(setting: str, source: str) -> str:
    """The text of a user's Python file; UserError names the setting if it cannot be read."""
    where = f"{setting}: {source}"
    if not str(source).endswith(".py"):
        raise UserError(f"{where} must be a Python file with a name that ends in .py")
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
            f"{where} is too large: {len(content):,} bytes of at most {MOST_BYTES:,}, because its text is part of each "
            "run's specification; move data and helpers to a package of the stack"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


@cache
def _require_name(where: str, kind: str, name: str, code: str) -> None:
    """UserError if the file's text defines no such function or class; does not run the file."""
    source = where.rpartition(": ")[2]
    try:
        symbols = symtable(code, source, "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{where} cannot be imported: {describe_error(error, source)}; correct the file") from None
    assigned = [symbol.get_name() for symbol in symbols if symbol.is_assigned()]
    imported = [symbol.get_name() for symbol in symbols if symbol.is_imported()]
    assigned += _REGISTERED.findall(code)
    if name not in (*assigned, *imported) and not _DYNAMIC_NAMES.search(code):
        raise UserError(f"{where}: {unknown_name(kind, name, assigned)}")
