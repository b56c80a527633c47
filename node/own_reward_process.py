"""Runs a user's reward function in a process of its own, which may be ended: `python own_reward_process.py`.

Orders come by stdin as lines of JSON, answers go to stdout. First come `{source, code, function, options, columns,
limit_s}`, answered by `{takes}`; then `{given, limit_s}` for some responses, answered by `{values, wrong}`. Where
something is wrong, either answer is `{problem}`. What the user's code prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import inspect
import json
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

ARGUMENTS = ("completions", "prompts", "rows", "token_ids", "cut_off")
"""What a function is given, each a list with one entry for each response; it gets those that it has parameters for.
So it is with the data's columns that the workload names."""


class _Source(importlib.abc.InspectLoader):
    """Loads a module from its text; a traceback shows its lines though no file is there."""

    def __init__(self, source: str, code: str) -> None:
        self.source, self.code = source, code

    def get_source(self, fullname: str) -> str:
        return self.code

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.code, self.source)


class Problem(Exception):
    """What is wrong with the user's file, in words."""


def load_function(source: str, code: str, function: str) -> Callable[..., Any]:
    """The function of a module's text; a `Problem` where it cannot be had."""
    loader = _Source(source, code)
    name = f"own_reward_{Path(source).stem}"
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise Problem(f"{source} cannot be imported: {describe_error(error, source)}") from error
    made = getattr(module, function, None)
    if not callable(made):
        there = [key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == name]
        raise Problem(f"{source} has no function {function!r}; it has: {', '.join(there) or 'none'}")
    return made  # type: ignore[no-any-return]


def describe_error(error: BaseException, source: str) -> str:
    """An exception in one line, with the line of the user's file where it was raised."""
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
    at_fault = error.lineno if isinstance(error, SyntaxError) and error.filename == source else None
    line = at_fault or (frames[-1] if frames else None)
    what = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {what[:500]}" + (f" ({source}, line {line})" if line else f" ({source})")


def accepted_arguments(
    function: Callable[..., Any], options: Mapping[str, Any], columns: Sequence[str], where: str
) -> list[str]:
    """Which of `GIVEN` and of the columns it has parameters for; a `Problem` where it cannot be called with these."""
    given = (*ARGUMENTS, *columns)
    if inspect.iscoroutinefunction(function):
        raise Problem(f"{where} is a coroutine (async def); write a plain function")
    parameters = inspect.signature(function).parameters.values()
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for option in options:
        if option in given:
            what = "a column of the data" if option in columns else "what every function is given"
            raise Problem(f"{where}: option {option!r} has the name of {what}; rename it")
        if option not in names and not takes_all:
            raise Problem(f"{where} has no parameter for option {option!r}; its parameters: {', '.join(names)}")
    lacking = [
        one.name
        for one in parameters
        if one.default is one.empty and one.name in names and one.name not in given and one.name not in options
    ]
    if lacking:
        raise Problem(
            f"{where} has a parameter {lacking[0]!r} that is no option; functions are given {', '.join(given)} and the "
            "columns that workload.data.columns names"
        )
    return [name for name in given if takes_all or name in names]


def check_values(made: Any, count: int, where: str) -> tuple[list[float | None], dict[int, str]]:
    """The values that a function returned, and what is wrong with some of them, which are None then."""
    if hasattr(made, "tolist"):
        made = made.tolist()
    if not isinstance(made, Sequence) or isinstance(made, str | bytes):
        raise Problem(f"{where} must return a list of {count}, one value for each completion (got {_shown(made)})")
    if len(made) != count:
        raise Problem(f"{where} must return one value for each completion (got {len(made)} values for {count})")
    values: list[float | None] = []
    wrong = {}
    for at, value in enumerate(made):
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
    """Answers one order after another; where one takes too long, the answer names the line, and the process ends."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._source, self._where = "", ""
        self._function: Callable[..., Any] | None = None
        self._options: dict[str, Any] = {}
        self._takes: list[str] = []

    def answer(self, order: Mapping[str, Any]) -> None:
        """Load, or score."""
        if "code" in order:
            self._source, self._where = order["source"], f"{order['source']}: {order['function']}"
        with self._ended_after(float(order["limit_s"])) as say:
            try:
                say(self._load(order) if "code" in order else self._score(order["given"]))
            except Problem as problem:
                lacks = problem.__cause__
                missing = lacks.name if isinstance(lacks, ModuleNotFoundError) else None
                say({"problem": str(problem), "missing": missing})

    def _load(self, order: Mapping[str, Any]) -> dict[str, Any]:
        self._options = dict(order["options"])
        self._function = load_function(order["source"], order["code"], order["function"])
        self._takes = accepted_arguments(self._function, self._options, order["columns"], self._where)
        return {"takes": self._takes}

    def _score(self, given: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        assert self._function is not None
        count = len(next(iter(given.values())))
        kept = {name: value for name, value in given.items() if name in self._takes}
        try:
            made = self._function(**kept, **self._options)
        except (Exception, SystemExit) as error:
            raise Problem(f"{self._where}: {describe_error(error, self._source)}") from None
        values, wrong = check_values(made, count, self._where)
        return {"values": values, "wrong": wrong}

    @contextlib.contextmanager
    def _ended_after(self, limit_s: float) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        said = False
        working = threading.get_ident()

        def say(answer: Mapping[str, Any]) -> None:
            nonlocal said
            with self._lock:
                if not said:
                    said = True
                    print(json.dumps(answer), file=self._answers, flush=True)

        def too_late() -> None:
            if said:
                return
            line, frame = None, sys._current_frames().get(working)
            while frame is not None and line is None:
                line = frame.f_lineno if frame.f_code.co_filename == self._source else None
                frame = frame.f_back
            place = f" ({self._source}, line {line})" if line else ""
            say({"problem": f"{self._where}: no answer within {limit_s:g} s{place}", "late": True})
            os._exit(0)

        timer = threading.Timer(limit_s, too_late)
        timer.daemon = True
        timer.start()
        try:
            yield say
        finally:
            timer.cancel()


def main() -> None:
    """Serve until stdin ends."""
    import signal

    # Whoever stops a job may signal all its processes; this one ends with its parent.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # This file's folder is no place for the user's imports.
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    server = Server(answers)
    for line in orders:
        server.answer(json.loads(line))


if __name__ == "__main__":
    main()
