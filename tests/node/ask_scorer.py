"""Scores with the same reward model here and in the scorer, and tells what came of it: `ask_scorer.py ATTEMPT PID OUT`.

PID is the scorer's, which is stopped and then killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from common.errors import UserError
from node import scorer
from node.attempt import Inputs, read_attempt, read_spec
from node.engine_server import SECRET
from node.rewards import reward_functions

attempt = read_attempt(sys.argv[1:2])
PID, OUT = int(sys.argv[2]), Path(sys.argv[3])
rewards = read_spec(attempt)["workload"]["rewards"]
here, there = reward_functions(rewards, models=Inputs(attempt).reward_models)
PROMPTS = [[{"role": "user", "content": f"{n} + {n}?"}] for n in range(5)]
TEXTS = ["4", "It is four, of course.", "", "no " * 60, "🍎🍎"]
results: dict[str, Any] = {}
for name, function in (("here", here), ("there", there)):
    function.ready("cpu")
    counted: dict[str, float] = {}
    values = function(TEXTS, PROMPTS, log_metric=counted.__setitem__)
    results[name] = [values, {key.rpartition("/")[2]: value for key, value in counted.items()}]


def refused() -> str:
    try:
        there(TEXTS, PROMPTS)
    except UserError as error:
        return str(error)
    return ""


secret, os.environ[SECRET] = os.environ[SECRET], "wrong"
results["stranger"] = refused()
os.environ[SECRET] = secret
scorer.ANSWER_S = 0.5
os.kill(PID, signal.SIGSTOP)
results["silent"] = refused()
scorer.ANSWER_S = 60.0
os.kill(PID, signal.SIGKILL)
results["dead"] = refused()
OUT.write_text(json.dumps(results))
