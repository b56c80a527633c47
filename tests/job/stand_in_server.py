"""Stands for an engine's server beside a trainer: it answers GET /health with its proof; what it saw is in server.json.

STAND_IN_SERVER=silent never answers; port_taken finds its port in use, in the first attempt;
breaks raises an error; stranger answers in the first attempt as another program does that has its port.
"""

import json
import os
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from node.engine_server import NONCE, PROOF, proof

SEEN = ("ROLLOUTBENCH_SHARE", "CUDA_VISIBLE_DEVICES", "RANK", "ROLLOUTBENCH_SERVER_SECRET")
order = json.loads(Path(sys.argv[1]).read_text())
host, port = sys.argv[3], int(sys.argv[5])
fault = os.environ.get("STAND_IN_SERVER")
seen = {"pid": os.getpid(), "host": host, **{name: os.environ.get(name) for name in SEEN}}
(Path(order["attempt_dir"]) / "server.json").write_text(json.dumps(seen))
if fault == "silent":
    time.sleep(600)
if fault == "breaks":
    raise ValueError("the model has no head")
taken = socket.create_server((host, port)) if fault == "port_taken" and order["attempt"] == 1 else None


class Health(BaseHTTPRequestHandler):
    """Answers that all is well."""

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        secret = (
            "guessed" if fault == "stranger" and order["attempt"] == 1 else os.environ["ROLLOUTBENCH_SERVER_SECRET"]
        )
        self.send_header(PROOF, proof(secret, self.headers.get(NONCE, "")))
        self.end_headers()

    def log_message(self, format, *args):
        return


HTTPServer((host, port), Health).serve_forever()
