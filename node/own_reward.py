"""Calls a user's reward function, and bounds what a hang or a failure of it can cost a run.

The run's specification holds the file's text: a change on the disk reaches no run that is planned. A process of its own
loads and calls it (own_reward_process.py). Where a call fails, each response is scored alone; one that fails alone has
no value (None), is counted, and stands in the log and in the attempt's reward_failures.jsonl.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import UserError
from node.built_in_rewards import Response
from node.own_reward_process import ARGUMENTS
from node.records import append_json_line

LOAD_S = 300.0
"""A file may import torch from a slow disk."""
CALL_S = 30.0
"""Of one call."""
ALONE_S = 60.0
"""Of all the responses that are scored alone after a failed call."""
GRACE_S = 5.0
MOST_FAILED = 32
"""So many failures in a row end the run: it would train on nothing."""
_SHOWN = 20


class RewardProgram:
    """A user's function in its process, which is started again after a hang or a crash.

    `reward` holds `source`, `code`, `function`, `options` and the data's `columns` that it may take. `NotLoaded` where
    the file cannot be loaded.
    """

    def __init__(
        self,
        reward: Mapping[str, Any],
        failures: Path | None = None,
        *,
        load_s: float = LOAD_S,
        call_s: float = CALL_S,
    ) -> None:
        self._order = {
            **{key: reward[key] for key in ("source", "code", "function")},
            "options": dict(reward.get("options") or {}),
            "columns": list(reward.get("columns") or ()),
            "limit_s": load_s,
        }
        self.name = str(reward["function"])
        self.where = f"{reward['source']}: {self.name}"
        self._failures, self._call_s = failures, call_s
        self._child: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._lock = threading.Lock()
        self._in_a_row = self._shown = 0
        self.missing: str | None = None
        """The module that the file imports and this Python lacks, where loading failed for that."""
        self.takes: tuple[str, ...] = ()
        with self._lock:
            problem = self._started()
        if problem:
            raise NotLoaded(f"workload.rewards: {problem}; correct the file", self.missing)

    def score(self, responses: Sequence[Response], *, trained: bool = True) -> tuple[list[float | None], int]:
        """One value for each response, and how many of them failed; `UserError` where all fail for long.

        Of responses that are not `trained` on no failure is counted or written.
        """
        with self._lock:
            values, wrong = self._values(responses)
        if not trained:
            return values, len(wrong)
        for at, response in enumerate(responses):
            self._in_a_row = self._in_a_row + 1 if at in wrong else 0
            if at in wrong:
                self._record(response, wrong[at])
            if self._in_a_row >= MOST_FAILED:
                raise UserError(
                    f"reward {self.name} failed on {MOST_FAILED} responses in a row, the last of them to "
                    f"{_row_of(response)}: {wrong[at]}; correct the file, and start again: it is another run then"
                )
        return values, len(wrong)

    def call(self, responses: Sequence[Response]) -> tuple[list[float | None], dict[int, str]]:
        """One value for each response of a call, and what is wrong with some; a `UserError` where the call failed."""
        answer = self._asked(_given(responses, self.takes))
        if "problem" in answer:
            raise UserError(str(answer["problem"]))
        return answer["values"], {int(at): str(what) for at, what in answer["wrong"].items()}

    def _values(self, responses: Sequence[Response]) -> tuple[list[float | None], dict[int, str]]:
        """The same; where the call fails, each response is scored alone."""
        try:
            return self.call(responses)
        except UserError as error:
            if len(responses) == 1:
                return [None], {0: str(error)}
            print(f"reward {self.name}: {error}; scoring each response alone", file=sys.stderr, flush=True)
        values: list[float | None] = []
        wrong: dict[int, str] = {}
        until = time.monotonic() + ALONE_S
        for at, response in enumerate(responses):
            if time.monotonic() > until:
                value, problem = None, {0: f"{self.where}: not called, since the responses before took too long"}
            else:
                (value,), problem = self._values([response])
            values.append(value)
            if problem:
                wrong[at] = problem[0]
        return values, wrong

    def _record(self, response: Response, problem: str) -> None:
        self._shown += 1
        if self._shown <= _SHOWN:
            more = " (further ones are not shown)" if self._shown == _SHOWN else ""
            said = f"reward {self.name}: no value for a response to {_row_of(response)}: {problem}{more}"
            print(said, file=sys.stderr, flush=True)
        if self._failures is not None:
            told = {"time": time.time(), "reward": self.name, "problem": problem, "row": dict(response.row)}
            append_json_line(self._failures, {**told, "completion": response.text[:2000]})

    def _started(self) -> str | None:
        """Start the process; what is wrong, if anything is."""
        # By its path: it needs nothing of ours, and finds the stack's packages as this process does.
        command = [sys.executable, str(Path(__file__).with_name("own_reward_process.py"))]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._unread = b""
        answer = self._exchanged(self._order)
        if "problem" in answer:
            self.missing = answer.get("missing")
            self._end()
            return str(answer["problem"])
        self.takes = tuple(answer["takes"])
        return None

    def _asked(self, given: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            if problem := self._started():
                return {"problem": problem}
        answer = self._exchanged({"given": given, "limit_s": self._call_s})
        if answer.get("late"):
            self._end()
        return answer

    def _exchanged(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """An order's answer; where none comes, the process is ended and the answer says so."""
        assert self._child is not None and self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(order).encode() + b"\n")
            self._child.stdin.flush()
        line = self._line(float(order["limit_s"]) + GRACE_S)
        if line is not None:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self._child.poll()
        self._end()
        if code is None:
            return {"problem": f"{self.where}: no answer within {order['limit_s']:g} s"}
        return {"problem": f"{self.where}: its process ended (exit code {code})"}

    def _line(self, limit_s: float) -> bytes | None:
        """The next line that the process writes; None where it ends, or writes none in time."""
        assert self._child is not None and self._child.stdout is not None
        until, pipe = time.monotonic() + limit_s, self._child.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                part = os.read(pipe.fileno(), 1 << 20)
                if not part:
                    with suppress(subprocess.TimeoutExpired):
                        self._child.wait(GRACE_S)
                    return None
                self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()


class NotLoaded(UserError):
    """A user's file that cannot be loaded; `missing` is the module that it imports and this Python lacks, if any."""

    def __init__(self, message: str, missing: str | None) -> None:
        super().__init__(message)
        self.missing = missing


def _given(responses: Sequence[Response], takes: Sequence[str]) -> dict[str, list[Any]]:
    given = {
        "completions": [one.text for one in responses],
        "prompts": [one.prompt for one in responses],
        "rows": [dict(one.row) for one in responses],
        "token_ids": [list(map(int, one.tokens)) for one in responses],
        "cut_off": [not one.complete for one in responses],
    }
    assert tuple(given) == ARGUMENTS
    # The number of responses is told by the first, also to a function that takes none of them.
    known = {name: column for name, column in given.items() if name in takes or name == "completions"}
    return known | {name: [one.row.get(name) for one in responses] for name in takes if name not in given}


def _row_of(response: Response) -> str:
    index, split = response.row.get("index"), response.row.get("split")
    return "a prompt" if index is None else f"row {index} of the data" + (" (test)" if split == "test" else "")
