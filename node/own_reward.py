"""Calls a user's reward function in separate processes, and limits the cost of its hangs and failures.

The run's spec contains the file's text, so changes on disk do not affect planned runs. own_reward_process.py loads and
calls the function, with the arguments of its signature (own_reward_signatures.py). If a call fails, each response is
scored separately. A response that still fails has no value (None), is counted, and is written to the log and to
reward_failures.jsonl.
"""

from __future__ import annotations

import json
import multiprocessing
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.retry import append_json_line
from node.built_in_rewards import Response, reward_name
from node.own_reward_signatures import ARGUMENTS, OWN

LOAD_S = 300.0
"""A file may import torch from a slow disk."""
CALL_S = 30.0
"""Time limit of one call of a reward without `timeout_s`."""
FOREIGN_CALL_S = 60.0
"""The same for a function with another signature: in its own trainer it had no limit, and its own are often 30 s."""
ALONE_S = 60.0
"""Time limit of scoring the responses separately after a failed call; two calls if that is longer."""
_END_S = 5.0
_WAIT_S = 0.2
"""A call that waits longer for a process starts another one: fast functions stay in one process."""
_MOST_PROCESSES = 32
"""As many calls at a time as Python's own threads, in which verl calls a reward."""
MOST_FAILED = 32
"""This number of failures in a row ends the run."""
_MOST_LOGGED = 20


class RewardProblem(UserError):
    """Why a user's file or function gives no value, as its process answers (own_reward_process.py)."""

    def __init__(self, answer: Mapping[str, Any], message: str = "") -> None:
        self.problem: str = answer["problem"]
        self.missing: str | None = answer.get("missing")
        """The module that this Python lacks, if that is the reason."""
        self.parameters: list[str] = answer.get("parameters") or []
        """The parameters for which there is no value."""
        self.late = bool(answer.get("late"))
        """Whether the time limit is the reason; the function may be correct."""
        super().__init__(message or self.problem)


Scored = tuple[float | None, RewardProblem | None]
"""A response's value and its problem."""


class RewardProcess:
    """A process with a user's function (own_reward_process.py). It is killed after a request without an answer in time;
    the next request starts it again."""

    def __init__(self, where: str, load: Mapping[str, Any], load_s: float) -> None:
        self._where, self._load, self._load_s = where, load, load_s
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> dict[str, Any]:
        """Start it and load the user's file; its answer."""
        self.kill()
        self._pipe, theirs = multiprocessing.Pipe()
        # By path: it needs only the stack's packages. The user's prints go to the log.
        command = [sys.executable, str(Path(__file__).with_name("own_reward_process.py")), str(theirs.fileno())]
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()])
        theirs.close()
        answer = self._exchange(self._child, self._load, self._load_s)
        if "problem" in answer:
            self.kill()
        return answer

    def ask(self, given: Mapping[str, Sequence[Any]], limit_s: float) -> dict[str, Any]:
        """The answer to a call; `problem` if there is none, `late` after the limit."""
        if self._child is None or self._child.poll() is not None:
            answer = self.start()
            if self._child is None:
                return answer
        return self._exchange(self._child, {"given": given}, limit_s)

    def _exchange(self, child: subprocess.Popen[bytes], request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        problem: dict[str, Any] = {"problem": f"{self._where}: no answer within {limit_s:g} s", "late": True}
        try:
            self._pipe.send_bytes(json.dumps(request).encode())
            if self._pipe.poll(limit_s):
                answer: dict[str, Any] = json.loads(self._pipe.recv_bytes())
                return answer
        except (EOFError, ConnectionError):
            with suppress(subprocess.TimeoutExpired):
                problem = {"problem": f"{self._where}: its process ended (exit code {child.wait(_END_S)})"}
        self.kill()
        return problem

    def kill(self) -> None:
        """End it."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            self._pipe.close()


class RewardProgram:
    """A user's function, called in a process of its own; in several, if several threads call it and wait.

    `reward` has `source`, `code`, `function`, `options`, the data's `columns` for its parameters, `signature` and
    `timeout_s`. `RewardProblem` if the file cannot be loaded, or the function cannot be called.
    """

    def __init__(self, reward: Mapping[str, Any], failures: Path | None = None, *, load_s: float = LOAD_S) -> None:
        request = {
            **{key: reward[key] for key in ("source", "code", "function")},
            "options": dict(reward.get("options") or {}),
            "columns": list(reward.get("columns") or ()),
            "signature": reward.get("signature"),
        }
        self.name = reward_name(reward)
        self.where = f"{reward['source']}: {self.name}"
        self._failures = failures
        self._processes = [RewardProcess(self.where, request, load_s) for _ in range(_MOST_PROCESSES)]
        self._unused = iter(self._processes)
        self._free: queue.LifoQueue[RewardProcess] = queue.LifoQueue()
        self._free.put(next(self._unused))
        self._lock = threading.Lock()
        self._failed_in_a_row = self._late_in_a_row = self._logged = 0
        answer = self._processes[0].start()
        if "problem" in answer:
            raise _not_loaded(answer)
        self.takes: tuple[str, ...] = tuple(answer["takes"])
        self.signature: str = answer["signature"]
        self.others: list[str] = answer["others"]
        """Further signatures that the function fits."""
        self.takes_all: bool = answer["takes_all"]
        """Whether it has `**kwargs`, as the functions of trainers that pass everything have."""
        self.answers: list[str] = answer["answers"]
        """Its parameters that get the ground truth because no column of the workload has their name."""
        self._one_by_one: bool = answer["one_by_one"]
        self.limit_s = float(reward.get("timeout_s") or (CALL_S if self.signature == OWN else FOREIGN_CALL_S))

    def score(self, responses: Sequence[Response]) -> tuple[list[float | None], int]:
        """One value for each response, and the number of failures; `UserError` after many failures in a row."""
        values: list[float | None] = []
        failed = 0
        for called in self._calls(responses):
            for response, (value, problem) in zip(called, self._scored(called), strict=True):
                values.append(value)
                failed += problem is not None
                with self._lock:
                    self._count(response, problem)
        return values, failed

    def call(self, responses: Sequence[Response]) -> tuple[list[float | None], RewardProblem | None]:
        """One value for each response, and the first problem; no values if a call fails: there is no second attempt."""
        try:
            scored = [one for called in self._calls(responses) for one in self._call(called)]
        except RewardProblem as problem:
            return [], problem
        return [value for value, _ in scored], next((problem for _, problem in scored if problem), None)

    def _calls(self, responses: Sequence[Response]) -> list[Sequence[Response]]:
        """The responses of each call."""
        return [[response] for response in responses] if self._one_by_one else [responses]

    def _scored(self, responses: Sequence[Response]) -> list[Scored]:
        """The responses of one call; if it fails, each is scored separately, as long as the limit allows."""
        try:
            return self._call(responses)
        except RewardProblem as error:
            if len(responses) == 1:
                return [(None, error)]
            print(f"reward {self.name}: {error}; scoring each response separately", file=sys.stderr, flush=True)
        scored: list[Scored] = []
        limit_s = max(ALONE_S, 2 * self.limit_s)
        until = time.monotonic() + limit_s
        for response in responses:
            if time.monotonic() > until:
                limit = f"responses are scored separately for at most {limit_s:g} s (two times timeout_s, if longer)"
                late = f"{self.where}: not called, because earlier responses took too long: {limit}"
                scored.append((None, RewardProblem({"problem": late, "late": True})))
            else:
                scored += self._scored([response])
        return scored

    def _call(self, responses: Sequence[Response]) -> list[Scored]:
        with self._process() as process:
            answer = process.ask(_arguments(responses, self.takes), self.limit_s)
        if answer.get("late"):
            calls = f"a call of {len(responses)} completion{'s' * (len(responses) > 1)}, limited by timeout_s"
            answer["problem"] += f": {calls}"
        if "problem" in answer:
            raise RewardProblem(answer)
        wrong = {int(at): RewardProblem({"problem": what}) for at, what in answer["wrong"].items()}
        return [(value, wrong.get(at)) for at, value in enumerate(answer["values"])]

    @contextmanager
    def _process(self) -> Iterator[RewardProcess]:
        """A process that no other call uses."""
        try:
            process = self._free.get(timeout=_WAIT_S)
        except queue.Empty:
            with self._lock:
                unused = next(self._unused, None)
            process = unused or self._free.get()
        try:
            yield process
        finally:
            self._free.put(process)

    def _count(self, response: Response, problem: RewardProblem | None) -> None:
        """Count failures in a row, and write one down; `UserError` for the last one of too many."""
        if problem is None:
            self._failed_in_a_row = self._late_in_a_row = 0
            return
        self._failed_in_a_row += 1
        self._late_in_a_row += problem.late
        self._logged += 1
        if self._logged <= _MOST_LOGGED:
            more = " (further ones are not logged)" if self._logged == _MOST_LOGGED else ""
            message = f"reward {self.name}: no value for a response to {_row_of(response)}: {problem}{more}"
            print(message, file=sys.stderr, flush=True)
        if self._failures is not None:
            line = {"time": time.time(), "reward": self.name, "problem": str(problem), "row": dict(response.row)}
            append_json_line(self._failures, {**line, "completion": response.text[:2000]})
        if self._failed_in_a_row >= MOST_FAILED:
            raise self._too_many(response, problem)

    def _too_many(self, response: Response, problem: RewardProblem) -> UserError:
        """What ends the run: a fault of the file, or a time limit that a correct function may need more of."""
        what, change = "failed on", "correct the file"
        if late := self._late_in_a_row:
            faulty = late < self._failed_in_a_row
            what = f"failed on or was too slow for ({late})" if faulty else "was too slow for"
            change = f"{change if faulty else 'make it faster'}, or raise its timeout_s ({self.limit_s:g} s),"
        return UserError(
            f"reward {self.name} {what} {self._failed_in_a_row} responses in a row, the last one to "
            f"{_row_of(response)}: {problem}; {change} and start again, which makes a new run"
        )

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()


def _not_loaded(answer: Mapping[str, Any]) -> RewardProblem:
    """The problem of a file that cannot be loaded, or of a function that cannot be called."""
    change = "correct the file"
    if missing := answer.get("missing"):
        change = f"use a stack that has {missing.partition('.')[0]}, or do without it"
    elif answer.get("late"):
        change = "load less when the file is imported"
    return RewardProblem(answer, f"workload.rewards: {answer['problem']}; {change}")


def _arguments(responses: Sequence[Response], takes: Sequence[str]) -> dict[str, list[Any]]:
    arguments = {
        "completions": [r.text for r in responses],
        "prompts": [r.prompt for r in responses],
        "rows": [dict(r.row) for r in responses],
        "token_ids": [list(map(int, r.tokens)) for r in responses],
        "cut_off": [not r.complete for r in responses],
    }
    assert tuple(arguments) == ARGUMENTS
    return {name: column for name, column in arguments.items() if name in takes}


def _row_of(response: Response) -> str:
    index, split = response.row.get("index"), response.row.get("split")
    return "a prompt" if index is None else f"row {index} of the data" + (" (test)" if split == "test" else "")
