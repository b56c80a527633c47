"""Scores with reward models in a separate process, `python -m node.scorer ATTEMPT --host HOST --port PORT`, and
contains the trainer's client.

GET /health returns 200 after the models are loaded. POST /score with the job's secret takes `{reward, trained,
responses: [[text, prompt]]}` and returns `{values, failed, truncated}` or `{problem}`, as JSON over loopback.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

from common.errors import UserError
from node.built_in_rewards import Response
from node.engine_server import SCORER, SECRET, read_server_order
from node.exit_codes import one_line, run
from node.hardware import importing
from node.reward_model import Classifier, model_key, scorer_rewards

ANSWER_S = 1800.0
"""Time limit of one call; a dead process is detected at once."""


class RemoteClassifier(Classifier):
    """A reward model in the scorer's process; it returns the same values."""

    def ready(self, device: Any) -> None:
        """Nothing to do: the trainer starts after the scorer is ready."""

    def score(self, responses: Sequence[Response], *, trained: bool = True) -> tuple[list[float | None], int]:
        """As `Classifier.score`; `UserError` also if the scorer does not answer."""
        pairs = [[response.text, response.prompt] for response in responses]
        answer = _ask_scorer({"reward": self.name, "trained": trained, "responses": pairs})
        if "problem" in answer:
            raise UserError(str(answer["problem"]))
        self.truncated = int(answer["truncated"])
        return answer["values"], int(answer["failed"])


def _ask_scorer(question: Mapping[str, Any]) -> dict[str, Any]:
    at = urlsplit(os.environ.get(SCORER, ""))
    if not at.port:
        raise UserError(
            f"a reward model's device is own, but {SCORER} is not set: the job starts the scorer and sets it"
        )
    connection = HTTPConnection(str(at.hostname), at.port, timeout=ANSWER_S)
    try:
        connection.request("POST", "/score", json.dumps(question), {"Authorization": os.environ.get(SECRET, "")})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    except TimeoutError:
        raise UserError(f"the scorer at {at.netloc} did not answer within {ANSWER_S:g} s; see its log") from None
    except (OSError, HTTPException, ValueError) as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"the scorer at {at.netloc} does not answer ({what}); see its log") from error
    finally:
        connection.close()
    return answer


class Scorer(ThreadingTCPServer):
    """The scorer's server, one call at a time; `server_bind` detects a port in use before the models load."""

    daemon_threads = True
    request_queue_size = 128  # all processes of a node call at the same time

    def __init__(self, host: str, port: int, secret: str) -> None:
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.secret = secret.encode()
        self._models: dict[str, Classifier] = {}
        self._lock = threading.Lock()

    def serve(self, models: Sequence[Classifier]) -> None:
        """Serve until the process ends; before, connections are refused."""
        self._models = {model.name: model for model in models}
        self.server_activate()
        self.serve_forever()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a POST /score."""
        name = str(question["reward"])
        responses = [Response(text=text, prompt=prompt) for text, prompt in question["responses"]]
        try:
            with self._lock:
                values, failed = self._models[name].score(responses, trained=bool(question["trained"]))
                return {"values": values, "failed": failed, "truncated": self._models[name].truncated}
        except UserError as error:
            return {"problem": str(error)}
        except Exception as error:
            traceback.print_exc()
            return {"problem": f"the reward model {name} failed: {type(error).__name__}: {one_line(error)}"}


class _Handler(BaseHTTPRequestHandler):
    server: Scorer
    timeout = 60.0  # of a connection that says nothing

    def do_GET(self) -> None:
        self._reply(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.server.secret):
            return self._reply(403, {"problem": "another job's scorer was asked: the secret is wrong"})
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._reply(200, self.server.answer(question))

    def _reply(self, status: int, answer: Mapping[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        """No log: the trainer's steps show the calls."""


def main() -> None:
    """Load the reward models of the command line's attempt, each on its own GPU, and serve."""
    order = read_server_order("node.scorer", "scorer")
    scorer = Scorer(order.host, order.port, os.environ[SECRET])
    scorer.server_bind()
    with importing():
        import torch

    torch.set_num_threads(len(order.job.affinity))
    spec, folders = order.job.spec, order.job.inputs.reward_models
    rewards = scorer_rewards(spec["workload"]["rewards"])
    gpus, seen = int(spec["scorer"]["gpus"]), torch.cuda.device_count()
    if gpus > seen:
        raise UserError(f"the reward models need GPUs of their own ({gpus}), and torch sees {seen}; check the node")
    models = [Classifier(reward, folders[model_key(reward)]) for reward in rewards]
    for at, model in enumerate(models):
        model.ready(f"cuda:{at}" if gpus else "cpu")
    print(f"{len(models)} reward models are loaded", flush=True)
    scorer.serve(models)


if __name__ == "__main__":
    sys.exit(run(main))
