"""Actors that have an engine, as far as a run asks it what it runs with. Each is a process, and needs no torch."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

# What SGLang 0.4.6 and 0.5.12 describe of themselves (srt/entrypoints/engine.py and http_server.py), in part.
INFO = {
    **{"attention_backend": None, "chunked_prefill_size": 8192, "max_running_requests": None, "tp_size": 1},
    **{"disable_cuda_graph": False, "cuda_graph_max_bs": 160, "disable_radix_cache": False, "random_seed": 7},
    **{"quantization": None, "kv_cache_dtype": "auto", "enable_memory_saver": True, "max_total_num_tokens": 123_456},
    "internal_states": [{"attention_backend": "fa3", "effective_max_running_requests_per_dp": 48}],
}


class Engine:
    """SGLang's Engine in a worker of 0.4.1."""

    def get_server_info(self):
        return INFO


class WorkerDict:
    """An actor of 0.4.1 with the worker that has an engine; of several GPUs' processes one has it."""

    def __init__(self, has_engine):
        rollout = SimpleNamespace(_engine=Engine() if has_engine else None)
        self.worker_dict = {"ref": SimpleNamespace(), "actor_rollout": SimpleNamespace(rollout=rollout)}


class SGLangHttpServer:
    """An actor of 0.9.1: it has no Engine, and serves SGLang's own routes."""

    def __init__(self):
        class Routes(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path == "/server_info" else 404)
                self.end_headers()
                self.wfile.write(json.dumps(INFO).encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Routes)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def get_server_address(self):
        return self.server.server_address

    async def generate(self):
        """With an asynchronous method Ray calls all of them in an event loop, as of verl's."""
