"""Runs a user's reward function in a process that may be killed: `python own_reward_process.py FD`.

Requests and answers are JSON, over the connection with that file descriptor. The first request is `{source, code,
function, options}` with the answer `{names, required, takes_all, is_class}`; further ones are `{arguments, count}` with
the answer `{values}`. An error gives `{problem, missing}`. It imports only the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import linecache
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any


class Problem(Exception):
    """An error in the user's file, as a message."""


def load_function(source: str, code: str, function: str) -> Callable[..., Any]:
    """The function of a module's text; `Problem` if it cannot be loaded."""
    name = f"own_reward_{Path(source).stem}"
    module = sys.modules[name] = ModuleType(name)  # dataclasses and pickle need it there
    linecache.cache[source] = (len(code), None, code.splitlines(keepends=True), source)  # for tracebacks
    try:
        exec(compile(code, source, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        raise Problem(f"{source} cannot be imported: {describe_error(error, source)}") from error
    loaded: Callable[..., Any] | None = getattr(module, function, None)
    if not callable(loaded):
        raise Problem(f"{source} has no function {function!r}")
    return loaded


def describe_error(error: BaseException, source: str) -> str:
    """An exception in one line, with the line number in the user's file."""
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
    syntax_line = error.lineno if isinstance(error, SyntaxError) and error.filename == source else None
    line = syntax_line or (frames[-1] if frames else None)
    what = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {what[:500]}" + (f" ({source}, line {line})" if line else f" ({source})")


class Worker:
    """A user's function, loaded by the first request; a class is made with the options, and its instance is called."""

    def __init__(self, source: str, code: str, function: str, options: Mapping[str, Any]) -> None:
        self._source, self._where = source, f"{source}: {function}"
        loaded = load_function(source, code, function)
        is_class = inspect.isclass(loaded)
        try:
            self._function: Callable[..., Any] = loaded(**options) if is_class else loaded
            parameters = inspect.signature(self._function).parameters.values()
        except (Exception, SystemExit) as error:
            raise Problem(f"{self._where} cannot be used: {describe_error(error, source)}") from error
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.loaded: dict[str, Any] = {
            "names": [p.name for p in named],
            "required": [p.name for p in named if p.default is p.empty],
            "takes_all": any(p.kind is p.VAR_KEYWORD for p in parameters),
            "is_class": is_class,
        }
        # One for all calls: clients belong to the loop of their first.
        self._loop = asyncio.new_event_loop()

    def values(self, arguments: Mapping[str, Any], count: int | None) -> list[float | str | None]:
        """The values of a call for `count` completions, and problems as text; None: for one, whose value or `score` it
        returns alone."""
        try:
            returned = self._function(**arguments)
            if inspect.isawaitable(returned):
                returned = self._loop.run_until_complete(returned)
        except (Exception, SystemExit) as error:
            raise Problem(f"{self._where}: {describe_error(error, self._source)}") from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that the function left would end this process
        if count is None:
            returned = [returned["score"] if isinstance(returned, Mapping) and "score" in returned else returned]
        values = returned.tolist() if hasattr(returned, "tolist") else returned
        if not isinstance(values, list | tuple) or len(values) != (count or 1):
            got = f"{len(values)} values for {count}" if isinstance(values, list | tuple) else _shown(values)
            raise Problem(f"{self._where} must return one value for each completion (got {got})")
        return [self._number(value) for value in values]

    def _number(self, value: Any) -> float | str | None:
        """A value as a number; what is wrong with it as text."""
        if value is None:
            return None
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        wanted = f"{self._where} must return a finite number or None for each completion"
        return number if math.isfinite(number) else f"{wanted} (got {_shown(value)})"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'}, of type {type(value).__name__}"


def main() -> None:
    """Answer requests until the connection ends."""
    # A stop signal may go to all processes of a job; this one ends with its parent.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # The user must not import from this file's folder.
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    os.set_inheritable(int(sys.argv[1]), False)
    pipe, worker = Connection(int(sys.argv[1])), None
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request = json.loads(pipe.recv_bytes())
            try:
                if worker is None:
                    worker = Worker(**request)
                    answer = worker.loaded
                else:
                    answer = {"values": worker.values(**request)}
            except Problem as problem:
                cause = problem.__cause__
                missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
                answer = {"problem": str(problem), "missing": missing}
            pipe.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
