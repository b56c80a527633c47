"""Runs a user's reward function in a process that may be killed: `python own_reward_process.py FD`.

Requests and answers are JSON, over the connection with that file descriptor. The first request is `{source, code,
function, options, columns, signature}` with the answer `{takes, signature, others, takes_all, one_by_one, answers}`;
further requests are `{given}` with the answer `{values, wrong}`. An error gives `{problem, missing, parameters}`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import linecache
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from node import own_reward_signatures as signatures
else:  # started by its path, from whose folder the user's code must not import
    import own_reward_signatures as signatures

Problem = signatures.Problem


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
        registered = _registered(module)
        loaded = registered.get(function)
        if not callable(loaded):
            own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == name}
            known = [key for key, value in own.items() if inspect.isfunction(value) or inspect.isclass(value)]
            known += [f"orms[{key!r}]" for key, value in registered.items() if getattr(value, "__module__", "") == name]
            raise Problem(f"{source} has no function {function!r}; it has: {', '.join(known) or 'none'}")
    return loaded  # type: ignore[no-any-return]


def _registered(module: ModuleType) -> dict[str, Any]:
    """The rewards that a module has registered in ms-swift's `orms`."""
    places = [module, *(sys.modules[name] for name in ("swift.rewards", "swift.plugin") if name in sys.modules)]
    found = [getattr(place, "orms", None) for place in places]
    return {key: value for orms in found if isinstance(orms, dict) for key, value in orms.items()}


def describe_error(error: BaseException, source: str) -> str:
    """An exception in one line, with the line number in the user's file."""
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
    syntax_line = error.lineno if isinstance(error, SyntaxError) and error.filename == source else None
    line = syntax_line or (frames[-1] if frames else None)
    what = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {what[:500]}" + (f" ({source}, line {line})" if line else f" ({source})")


def constructed(
    made: type, options: Mapping[str, Any], source: str, where: str
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """An instance of a class of rewards, and the options that its calls get.

    The options are those of its constructor, by name or in `args`, and those that `__call__` names.
    """
    definer = next((one for one in made.__mro__ if "__call__" in vars(one)), None)
    if definer is None or definer.__name__ in signatures.BASES:
        raise Problem(f"{where} is a class without __call__, which scores the completions; add it, or name a function")
    wanted = signatures.Parameters.of(made, where)
    given = {name: value for name, value in options.items() if name in wanted.names}
    rest = {name: value for name, value in options.items() if name not in given}
    if "args" in wanted.names:
        given["args"] = signatures.Options(options)
    try:
        instance = made(**given)
    except (Exception, SystemExit) as error:
        raise Problem(f"{where} cannot be constructed: {describe_error(error, source)}") from error
    if "args" in given:
        called = signatures.Parameters.of(instance, where).names
        rest = {name: value for name, value in rest.items() if name in called}
    return instance, rest


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


def score_of(returned: Any, where: str) -> Any:
    """The value in what a function for one response returned."""
    if not isinstance(returned, Mapping):
        return returned
    if "score" not in returned:
        raise Problem(f"{where} must return a number, or a dict with 'score' (got {_shown(dict(returned))})")
    return returned["score"]


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'}, of type {type(value).__name__}"


class Worker:
    """A user's function, loaded by the first request, and how it is called."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._source, self._where = request["source"], f"{request['source']}: {request['function']}"
        function = load_function(self._source, request["code"], request["function"])
        options, columns = dict(request["options"]), request["columns"]
        named, others = request.get("signature"), list[str]()
        if inspect.isclass(function):
            function, options = constructed(function, options, self._source, self._where)
            named = named or signatures.OF_CLASSES
        parameters = signatures.Parameters.of(function, self._where)
        if not named:
            named, others = signatures.fitting_signatures(parameters, options, columns)
        self._signature = signatures.SIGNATURES[named]
        if self._signature.positional:
            parameters = parameters.positional()
        self._takes = signatures.accepted_arguments(parameters, self._signature, options, columns, self._where)
        self._function = partial(function, **options)
        self._loop: Any = None
        needs = {"completions", *(need for needed, _ in self._takes.values() for need in needed)}
        self.loaded: dict[str, Any] = {
            "takes": [name for name in signatures.ARGUMENTS if name in needs],
            "signature": named,
            "others": others,
            "takes_all": parameters.takes_all,
            "one_by_one": self._signature.one_by_one,
            "answers": [name for name in parameters.names if self._takes.get(name) in signatures.TRUTHS.values()],
        }
        """The answer to the first request."""

    def score(self, given: signatures.Given) -> dict[str, Any]:
        """The values of a call, and the problems by position."""
        count = len(given["completions"])
        named = {name: make(given) for name, (_, make) in self._takes.items()}
        first = [named.pop("completions")] if self._signature.positional else []
        try:
            returned = self._function(*first, **named)
            if inspect.isawaitable(returned):
                returned = self._awaited(returned)
        except (Exception, SystemExit) as error:
            raise Problem(f"{self._where}: {describe_error(error, self._source)}") from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that the function left would end this process
        if self._signature.one_by_one:
            returned = [score_of(returned, self._where)]
        values, wrong = check_values(returned, count, self._where)
        return {"values": values, "wrong": wrong}

    def _awaited(self, returned: Any) -> Any:
        """The result of an async function; one loop for all calls, since clients belong to the loop of their first."""
        import asyncio

        self._loop = self._loop or asyncio.new_event_loop()
        return self._loop.run_until_complete(returned)


def main() -> None:
    """Answer requests until the connection ends."""
    # A stop signal may go to all processes of a job; this one ends with its parent.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # The user must not import from this file's folder.
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    os.set_inheritable(int(sys.argv[1]), False)
    stand_in = signatures.StandIn()
    sys.meta_path.append(stand_in)  # last: it has what no other finder has
    pipe = Connection(int(sys.argv[1]))
    worker: Worker | None = None
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request = json.loads(pipe.recv_bytes())
            stand_in.missed.clear()
            try:
                if worker is None:
                    worker = Worker(request)
                    answer = worker.loaded
                else:
                    answer = worker.score(request["given"])
            except Problem as problem:
                missing = _missing(problem.__cause__, stand_in)
                answer = {"problem": str(problem), "missing": missing, "parameters": problem.parameters}
            pipe.send_bytes(json.dumps(answer).encode())


def _missing(cause: BaseException | None, stand_in: signatures.StandIn) -> str | None:
    """The module whose absence is the cause; ms-swift's own rewards assert that they find theirs."""
    if isinstance(cause, ModuleNotFoundError):
        return cause.name
    return next(reversed(stand_in.missed), None) if isinstance(cause, AssertionError) else None


if __name__ == "__main__":
    main()
