"""Runs a user's reward function in a process that may be killed: `python own_reward_process.py`.

It reads orders from stdin and writes answers to stdout, as JSON lines. The first order is `{source, code, function,
options, columns, limit_s}` with the answer `{takes}`; further orders are `{given, limit_s}` with the answer `{values,
wrong}`. An error gives `{problem}`. The user's prints go to stderr.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import linecache
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ARGUMENTS = ("completions", "prompts", "rows", "token_ids", "cut_off")
"""The possible arguments, each a list with one entry per response. A function gets those for which it has parameters;
likewise the columns that the workload names."""


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
    loaded = getattr(module, function, None)
    if not callable(loaded):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == name]
        raise Problem(f"{source} has no function {function!r}; it has: {', '.join(known) or 'none'}")
    return loaded  # type: ignore[no-any-return]


def describe_error(error: BaseException, source: str) -> str:
    """An exception in one line, with the line number in the user's file."""
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
    syntax_line = error.lineno if isinstance(error, SyntaxError) and error.filename == source else None
    line = syntax_line or (frames[-1] if frames else None)
    what = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {what[:500]}" + (f" ({source}, line {line})" if line else f" ({source})")


def accepted_arguments(
    function: Callable[..., Any], options: Mapping[str, Any], columns: Sequence[str], where: str
) -> list[str]:
    """The `ARGUMENTS` and columns that a function accepts; `Problem` if it cannot be called with them."""
    given = (*ARGUMENTS, *columns)
    if inspect.iscoroutinefunction(function):
        raise Problem(f"{where} is a coroutine (async def); write a plain function")
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in options:
        if option in given:
            what = "a column of the data" if option in columns else "an argument of every function"
            raise Problem(f"{where}: option {option!r} has the name of {what}; rename it")
        if option not in names and not takes_all:
            raise Problem(f"{where} has no parameter for option {option!r}; its parameters: {', '.join(names)}")
    required = {p.name for p in parameters if p.default is p.empty}
    if missing := [name for name in names if name in required and name not in given and name not in options]:
        raise Problem(
            f"{where} has a parameter {missing[0]!r} that is no option; functions are given {', '.join(given)} and the "
            "columns that workload.data.columns names"
        )
    return [name for name in given if takes_all or name in names]


def check_values(returned: Any, count: int, where: str) -> tuple[list[float | None], dict[int, str]]:
    """The values that a function returned, and the problems by position; invalid values become None."""
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
        raise Problem(f"{where} must return a list of {count}, one value for each completion (got {_shown(returned)})")
    if len(returned) != count:
        raise Problem(f"{where} must return one value for each completion (got {len(returned)} values for {count})")
    values: list[float | None] = []
    wrong = {}
    for at, value in enumerate(returned):
        try:
            number = None if value is None or isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError):
            number = None
        if number is None and value is not None:
            wrong[at] = f"{where} must return a number or None for each completion (got {_shown(value)})"
        elif number is not None and not math.isfinite(number):
            wrong[at] = f"{where} must return finite numbers (got {number})"
        values.append(None if at in wrong else number)
    return values, wrong


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'}, of type {type(value).__name__}"


class Server:
    """Answers orders; if one exceeds its time limit, the answer names the current line, and the process ends."""

    def __init__(self, answers: Any) -> None:
        self._answers, self._lock = answers, threading.Lock()
        self._source = self._where = ""
        self._function: Callable[..., Any] | None = None
        self._takes: list[str] = []

    def answer(self, order: Mapping[str, Any]) -> None:
        """Execute an order and write its answer."""
        if "code" in order:
            self._source, self._where = order["source"], f"{order['source']}: {order['function']}"
        with self._time_limit(float(order["limit_s"])) as reply:
            try:
                reply(self._load(order) if "code" in order else self._score(order["given"]))
            except Problem as problem:
                cause = problem.__cause__
                missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
                reply({"problem": str(problem), "missing": missing})

    def _load(self, order: Mapping[str, Any]) -> dict[str, Any]:
        function = load_function(order["source"], order["code"], order["function"])
        self._takes = accepted_arguments(function, order["options"], order["columns"], self._where)
        self._function = functools.partial(function, **order["options"])
        return {"takes": self._takes}

    def _score(self, given: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        assert self._function is not None
        count = len(next(iter(given.values())))
        try:
            returned = self._function(**{name: value for name, value in given.items() if name in self._takes})
        except (Exception, SystemExit) as error:
            raise Problem(f"{self._where}: {describe_error(error, self._source)}") from None
        values, wrong = check_values(returned, count, self._where)
        return {"values": values, "wrong": wrong}

    @contextlib.contextmanager
    def _time_limit(self, limit_s: float) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        replied = False
        thread = threading.get_ident()

        def reply(answer: Mapping[str, Any]) -> None:
            nonlocal replied
            with self._lock:
                if not replied:
                    replied = True
                    print(json.dumps(answer), file=self._answers, flush=True)

        def too_late() -> None:
            if replied:
                return
            line, frame = None, sys._current_frames().get(thread)
            while frame is not None and line is None:
                line = frame.f_lineno if frame.f_code.co_filename == self._source else None
                frame = frame.f_back
            place = f" ({self._source}, line {line})" if line else ""
            reply({"problem": f"{self._where}: no answer within {limit_s:g} s{place}", "late": True})
            os._exit(0)

        timer = threading.Timer(limit_s, too_late)
        timer.daemon = True
        timer.start()
        try:
            yield reply
        finally:
            timer.cancel()


def main() -> None:
    """Answer orders until stdin ends."""
    import signal

    # A stop signal may go to all processes of a job; this one ends with its parent.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # The user must not import from this file's folder.
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    server = Server(answers)
    for line in orders:
        server.answer(json.loads(line))


if __name__ == "__main__":
    main()
