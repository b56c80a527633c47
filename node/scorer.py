"""Scores with reward models in a process of its own, `python -m node.scorer ATTEMPT --host HOST --port PORT`, and asks
it from the trainer.

GET /health answers 200 once the models are loaded. POST /score takes `{reward, trained, responses: [[text, prompt]]}`
with the job's secret, and answers `{values, failed, truncated}`, or `{problem}`: plain JSON, over loopback.
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
"""Patience with one call; a process that has died is noticed at once."""


class RemoteClassifier(Classifier):
    """A reward model that lies in the scorer's process: the same values."""

    def ready(self, device: Any) -> None:
        """Nothing: the trainer starts when the scorer answers."""

    def score(self, responses: Sequence[Response], *, trained: bool = True) -> tuple[list[float | None], int]:
        """As in one's own process; `UserError` also where the scorer does not answer."""
        asked = [[response.text, response.prompt] for response in responses]
        answer = _answer({"reward": self.name, "trained": trained, "responses": asked})
        if "problem" in answer:
            raise UserError(str(answer["problem"]))
        self.truncated = int(answer["truncated"])
        return answer["values"], int(answer["failed"])


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    at = urlsplit(os.environ.get(SCORER, ""))
    if not at.port:
        raise UserError(f"a reward model's device is own, and no scorer runs: {SCORER} is not set; the job sets it")
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
    """Answers for reward models, one call after another: `server_bind` finds a port in use, then `serve`."""

    daemon_threads = True
    request_queue_size = 128  # all of a node's processes ask at once

    def __init__(self, host: str, port: int, secret: str) -> None:
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.secret = secret.encode()
        self._models: dict[str, Classifier] = {}
        self._lock = threading.Lock()

    def serve(self, models: Sequence[Classifier]) -> None:
        """Answer until the process is ended. Until then a connection is refused, and nobody waits for it."""
        self._models = {model.name: model for model in models}
        self.server_activate()
        self.serve_forever()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The scores of a question."""
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
        self._say(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.server.secret):
            return self._say(403, {"problem": "another job's scorer was asked: the secret is wrong"})
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._say(200, self.server.answer(question))

    def _say(self, status: int, answer: Mapping[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the trainer's steps say when it was asked."""


def main() -> None:
    """Load the reward models that the command line's attempt has for this process, a GPU each, and score."""
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
        raise UserError(f"the reward models need GPUs of their own ({gpus}), and torch sees {seen}; look at the node")
    models = [Classifier(reward, folders[model_key(reward)]) for reward in rewards]
    for at, model in enumerate(models):
        model.ready(f"cuda:{at}" if gpus else "cpu")
    print(f"{len(models)} reward models are loaded", flush=True)
    scorer.serve(models)


if __name__ == "__main__":
    sys.exit(run(main))
