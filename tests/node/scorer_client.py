"""Asks the scorer as a trainer's process does, and writes what it answers: `scorer_client ATTEMPT WHO OUT [PART]`.

With PART, from 0 to 1, it is killed when it has sent so much of its first question.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from node import scorer
from node.attempt import Inputs, read_attempt, read_spec
from node.built_in_rewards import Response
from node.reward_model import model_key, scorer_rewards

ROUNDS = 8


def answers(attempt: Path, who: str) -> list[Any]:
    """Of each round its scores, how many have failed, and how many texts were too long."""
    order = read_attempt([str(attempt)])
    (reward,) = scorer_rewards(read_spec(order)["workload"]["rewards"])
    client = scorer.RemoteClassifier(reward, Inputs(order).reward_models[model_key(reward)])
    found = []
    for number in range(ROUNDS):
        lengths = [1 + (number * 7 + at * 5) % 40 for at in range(1 + number)]
        found.append([*client.score([Response(text=f"{who} " * length) for length in lengths]), client.truncated])
    return found


class Dying(HTTPConnection):
    """Sends a part of the first question's body, and is killed."""

    def send(self, data: Any) -> None:
        """The headers come whole, before it."""
        is_body = b"HTTP/1.1" not in data
        super().send(data[: int(len(data) * float(PART[0]))] if is_body else data)
        if is_body:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    attempt, who, out, *PART = sys.argv[1:]
    if PART:
        vars(scorer)["HTTPConnection"] = Dying
    Path(out).write_text(json.dumps(answers(Path(attempt), who)))
