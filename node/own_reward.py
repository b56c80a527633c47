"""Calls a user's reward function in a process of its own, and limits the cost of its hangs and failures.

The run's spec contains the file's text, so changes on disk do not affect planned runs. If a call fails, each response
is scored separately. A response that still fails has no value (None), is counted, and is written to the log and to
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.retry import append_json_line
from node.built_in_rewards import Response, reward_name

CALL_S = 60.0
"""Time limit of one call without `timeout_s`; and of scoring the responses separately after a failed call."""
_WAIT_S = 0.2
"""A call that waits longer for a process starts another one: fast functions stay in one process."""
MOST_FAILED = 32
"""This number of failures in a row ends the run."""
ARGUMENTS = ("completions", "prompts", "rows", "token_ids", "cut_off")
"""What functions get by name, each a list with one entry for each response."""
_TRUTHS = ("solution", "answer", "ground_truth")
"""Names of the ground truth in functions that were written for TRL or ms-swift."""
_TEXTS, _MESSAGES, _ONE = "texts", "conversations", "one text"
_FORMS = {"rolloutbench": _TEXTS, "swift": _TEXTS, "trl": _MESSAGES, "verl": _ONE}
"""As what the functions of a signature get completions."""
VERL = "solution_str"
"""A parameter of verl's functions, which score one response."""


class RewardProblem(UserError):
    """Why a user's file or function gives no value; `missing` is the module that this Python lacks."""

    def __init__(self, problem: str, missing: str | None = None, *, late: bool = False) -> None:
        super().__init__(problem)
        self.missing, self.late = missing, late


class _Process:
    """A process with a user's function (own_reward_process.py). It is killed after a request without an answer in time;
    the next request starts it again."""

    def __init__(self, where: str, load: Mapping[str, Any], load_s: float) -> None:
        self._where, self._load, self._load_s = where, load, load_s
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> dict[str, Any]:
        """Start it and load the user's file; its answer."""
        self._pipe, theirs = multiprocessing.Pipe()
        # By path: it needs only the stack's packages. The user's prints go to the log.
        command = [sys.executable, str(Path(__file__).with_name("own_reward_process.py")), str(theirs.fileno())]
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()])
        theirs.close()
        return self.ask(self._load, self._load_s, "while it was loaded")

    def ask(self, request: Mapping[str, Any], limit_s: float, when: str) -> dict[str, Any]:
        """The answer to a request; `RewardProblem` if there is none in time."""
        if self._child is None:
            self.start()
        answer: dict[str, Any] = {"problem": f"{self._where}: no answer within {limit_s:g} s {when}", "late": True}
        try:
            self._pipe.send_bytes(json.dumps(request).encode())
            if self._pipe.poll(limit_s):
                answer = json.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            answer = {"problem": f"{self._where}: its process ended (exit code {self.kill(5)})"}
        if answer.get("late"):
            self.kill()
        if "problem" in answer:
            raise RewardProblem(**answer)
        return answer

    def kill(self, wait_s: float = 0.0) -> int | None:
        """End it; its exit code if it ends by itself within `wait_s`."""
        child, self._child = self._child, None
        if child is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)
        code = child.poll()
        child.kill()
        child.wait()
        self._pipe.close()
        return code


class RewardProgram:
    """A user's function, called in a process of its own; in several, if several threads call it and wait.

    `reward` has `source`, `code`, `function`, `options`, the data's `columns` for its parameters, `signature` and
    `timeout_s`. `RewardProblem` if the file cannot be loaded, or the function cannot be called.
    """

    def __init__(self, reward: Mapping[str, Any], failures: Path | None = None, *, load_s: float = 300.0) -> None:
        self.name = reward_name(reward)
        self.where = f"{reward['source']}: {self.name}"
        self.limit_s = float(reward.get("timeout_s") or CALL_S)
        self._options, self._columns = dict(reward.get("options") or {}), list(reward.get("columns") or ())
        self._load = {key: reward[key] for key in ("source", "code", "function")} | {"options": self._options}
        self._load_s = load_s
        self._failures, self._failed_in_a_row, self._lock = failures, 0, threading.Lock()
        self._processes: list[_Process] = []
        self._free: queue.LifoQueue[_Process] = queue.LifoQueue()
        process = self._new()
        try:
            self._understand(process.start(), reward.get("signature"))
        except RewardProblem as problem:
            self.close()
            change = "correct the file, or use a stack that has what it imports"
            text = f"workload.rewards: {problem}; {change}"
            raise RewardProblem(text, problem.missing, late=problem.late) from None
        self._free.put(process)

    def _new(self) -> _Process:
        self._processes.append(_Process(self.where, self._load, self._load_s))
        return self._processes[-1]

    def _understand(self, loaded: Mapping[str, Any], signature: str | None) -> None:
        """Which arguments the function gets, and in what form, by its parameters; `RewardProblem` if it cannot run."""
        names, required, takes_all = loaded["names"], loaded["required"], loaded["takes_all"]
        if loaded["is_class"]:
            self._options = {}  # its constructor has them
        own = {*ARGUMENTS, *self._columns, *self._options}
        form = _TEXTS if loaded["is_class"] or all(name in own for name in required) else _MESSAGES
        self.form = _FORMS[signature] if signature else _ONE if VERL in names else form
        self.one_by_one = self.form == _ONE
        known = {*_arguments([Response("")], self._columns)} - {*self._options}
        further = (*ARGUMENTS, *_TRUTHS, *self._columns) if takes_all and not self.one_by_one else ()
        self.takes = tuple(name for name in dict.fromkeys((*names, *further)) if name in known)
        given = f"functions get {', '.join(ARGUMENTS)} and the columns that workload.data.columns names"
        for name in [] if takes_all else self._options:
            if name not in names:
                raise RewardProblem(f"{self.where} has no parameter for option {name!r}; it has {', '.join(names)}")
        for name in required:
            if name not in (*self.takes, *self._options):
                raise RewardProblem(f"{self.where} has a parameter {name!r} that is no option; {given}")

    def score(self, responses: Sequence[Response]) -> tuple[list[float | None], int]:
        """One value for each response, and the number of failures; `UserError` after many failures in a row."""
        values: list[float | None] = []
        failed = 0
        for called in [[response] for response in responses] if self.one_by_one else [responses]:
            for response, value in zip(called, self._scored(called), strict=True):
                problem = value if isinstance(value, RewardProblem) else None
                values.append(None if isinstance(value, RewardProblem) else value)
                failed += problem is not None
                with self._lock:
                    self._count(response, problem)
        return values, failed

    def _scored(self, responses: Sequence[Response]) -> list[float | RewardProblem | None]:
        """Values or problems of one call; if it fails, of each response separately, as long as the limit allows."""
        try:
            return self.call(responses)
        except RewardProblem as problem:
            if len(responses) == 1:
                return [problem]
            print(f"reward {self.name}: {problem}; scoring each response separately", file=sys.stderr, flush=True)
        found: list[float | RewardProblem | None] = []
        limit_s = max(CALL_S, 2 * self.limit_s)
        until = time.monotonic() + limit_s
        late = RewardProblem(f"{self.where}: not called, because earlier responses took over {limit_s:g} s", late=True)
        for response in responses:
            found += self._scored([response]) if time.monotonic() < until else [late]
        return found

    def call(self, responses: Sequence[Response]) -> list[float | RewardProblem | None]:
        """One value or its problem for each response of one call; raises `RewardProblem` if the call fails."""
        given = _arguments(responses, self._columns, as_messages=self.form == _MESSAGES)
        named = {name: given[name][0] if self.one_by_one else given[name] for name in self.takes}
        request = {"arguments": named | self._options, "count": None if self.one_by_one else len(responses)}
        try:
            process = self._free.get(timeout=_WAIT_S)
        except queue.Empty:
            process = self._new()
        try:
            when = f"(timeout_s) for {len(responses)} completion{'s' * (len(responses) > 1)}"
            values = process.ask(request, self.limit_s, when)["values"]
            return [RewardProblem(value) if isinstance(value, str) else value for value in values]
        finally:
            self._free.put(process)

    def _count(self, response: Response, problem: RewardProblem | None) -> None:
        """Count failures in a row, and write one down; `UserError` for the last one of too many."""
        self._failed_in_a_row = self._failed_in_a_row + 1 if problem else 0
        if problem is None:
            return
        row = f"row {response.row.get('index')} of the data" + " (test)" * (response.row.get("split") == "test")
        print(f"reward {self.name}: no value for a response to {row}: {problem}", file=sys.stderr, flush=True)
        if self._failures is not None:
            line = {"time": time.time(), "reward": self.name, "problem": str(problem), "row": dict(response.row)}
            append_json_line(self._failures, {**line, "completion": response.text[:2000]})
        if self._failed_in_a_row >= MOST_FAILED:
            slow = f"make it faster, or raise its timeout_s ({self.limit_s:g} s),"
            raise UserError(
                f"reward {self.name} failed on {self._failed_in_a_row} responses in a row, the last one to {row}: "
                f"{problem}; {slow if problem.late else 'correct the file'} and start again, which makes a new run"
            )

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()


def _arguments(responses: Sequence[Response], columns: Sequence[str], *, as_messages: bool = False) -> dict[str, Any]:
    """All that a function may ask for by name, each a list; beside `ARGUMENTS` the names of TRL, ms-swift and verl.

    TRL 1.16.0 trainer/grpo_trainer.py _calculate_rewards, ms-swift 4.6.0 rl_core/grpo_algorithm.py
    compute_rewards_per_func, verl 0.9.1 experimental/reward_loop/reward_manager/naive.py.
    """
    texts, rows = [one.text for one in responses], [dict(one.row) for one in responses]
    replies = [[{"role": "assistant", "content": text}] for text in texts]
    ids, cut = [list(map(int, one.tokens)) for one in responses], [not one.complete for one in responses]
    return {
        "completions": replies if as_messages else texts,
        "prompts": [one.prompt for one in responses],
        "rows": rows,
        "token_ids": ids,
        "cut_off": cut,
        "completion_ids": ids,
        "response_token_ids": ids,
        "is_truncated": cut,
        "messages": [[*(one.prompt or ()), *reply] for one, reply in zip(responses, replies, strict=True)],
        VERL: texts,
        "data_source": [row.get("data_source") for row in rows],
        "extra_info": [_extra_info(row) for row in rows],
        **{name: [one.ground_truth for one in responses] for name in _TRUTHS},
        **{name: [row.get(name) for row in rows] for name in columns},
    }


def _extra_info(row: dict[str, Any]) -> dict[str, Any]:
    """verl's: the row without what has its own argument; a column of verl's data of that name is part of it."""
    rest = {name: value for name, value in row.items() if name not in ("ground_truth", "data_source", "extra_info")}
    return rest | (own if isinstance(own := row.get("extra_info"), dict) else {})
