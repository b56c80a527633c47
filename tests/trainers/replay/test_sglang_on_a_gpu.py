"""SGLang's server on a GPU, in the shapes of its releases: none of them starts here without one."""

import ast
import os
import signal
import subprocess
import sys

import psutil
import pytest

from ... import patience
from ...importing import ROOT

# As SGLang 0.4.6.post5 and 0.5.23 have them (srt/server_args.py, srt/entrypoints): the server's process takes signals
# over and spawns the others; an update of the weights has a begin and an end from 0.5.23 on.
SERVER_ARGS = """
class ServerArgs:
    def __init__(self, model_path, dtype, random_seed, skip_tokenizer_init, log_level, dist_init_addr, host, port,
                 api_key, tp_size=1, enable_memory_saver=False):
        if tp_size > 2:
            raise ValueError("tp_size must divide the heads")
        self.__dict__.update(locals())
"""
ENGINE = "class Engine:\n    NEWER = {newer}\n    if NEWER:\n        def begin_weight_update(self, selector): pass\n"
HTTP_SERVER = """
import json, multiprocessing, os, signal, threading, time
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, HTTPServer
from sglang.srt.entrypoints.engine import Engine

asked = []

class App:
    def add_middleware(self, kind, **options):
        pass

app = App()

def work(ready):
    ready.send(1)
    time.sleep(600)

def launch_server(args, launch_callback):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(77))
    signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(0, os.WNOHANG))
    spawn = multiprocessing.get_context("spawn")
    for _ in range(args.tp_size):
        reader, writer = spawn.Pipe(duplex=False)
        spawn.Process(target=work, args=(writer,), daemon=True).start()
        reader.recv()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.path == ("/server_info" if Engine.NEWER else "/get_server_info")
            self.send_response(200 if known else 404)
            self.end_headers()
            info = {"tp_size": args.tp_size, "internal_states": [{"effective_max_running_requests_per_dp": 48}]}
            self.wfile.write(json.dumps(info).encode() if known else b"")
        def do_POST(self):
            path = self.path[1:]
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = 200, b""
            if self.headers["Authorization"] != "Bearer " + args.api_key:
                status = 401
            elif path == "generate":
                rows = [{"output_ids": [7] * one["max_new_tokens"]} for one in body["sampling_params"]]
                answer = json.dumps(rows + [{"output_ids": asked}]).encode()
            elif path.endswith("_weight_update") and not Engine.NEWER:
                status = 404
            elif path == "update_weights_from_tensor":
                sent = [len(b64decode(one)) > 9 for one in body["serialized_named_tensors"]]
                path += f" {sent} {body['flush_cache']}"
            asked.append(path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)
        def log_message(self, *_):
            pass

    server = HTTPServer((args.host, args.port), Handler)
    threading.Thread(target=launch_callback).start()
    server.serve_forever()
"""
TORCH = "from types import SimpleNamespace\ncuda = SimpleNamespace(is_available=lambda: True)\n"
PROGRAM = """
import os, signal
from pathlib import Path
import psutil
from common.errors import UserError
from engines.sglang import client
from engines.sglang.client import Sglang
from tests import patience

class Tensor:
    detach = lambda self: self
    to = lambda self, device: (self, device)[0]
    numel = lambda self: 8
    element_size = lambda self: 1

def below(engine):
    children = psutil.Process(engine._process.pid).children()
    return [one for one in children if any("spawn_main" in word for word in one.cmdline())]

if __name__ == "__main__":
    client.buckets.__defaults__ = (8,)
    settings = {"tp_size": 2, "enable_memory_saver": True}
    start = lambda number, **more: Sglang(Path("model"), "bfloat16", 3, {**settings, **more}, Path(f"log-{number}"))
    one, other = start(1), start(2)
    told = one.settings()
    assert one.sleeps and told["tensor_parallel_size"] == 2 and told["device"] == "cuda"
    assert told["effective_max_running_requests_per_dp"] == 48
    mine, others = below(one), below(other)
    assert len(mine) == len(others) == 2
    for pid in (one._process.pid, *[process.pid for process in mine]):
        blocked = int(Path(f"/proc/{pid}/status").read_text().partition("SigBlk:")[2].split()[0], 16)
        assert all(blocked >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGUSR2)), "Slurm's would end it"
        assert one._secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())

    one.sleep()
    one.wake()
    one.update_weights([("a", Tensor()), ("b", Tensor())])
    answer = one.generate([[1], [2]], [{"max_new_tokens": 2}, {"max_new_tokens": 1}], log_probs=False)
    *made, asked = answer.token_ids
    assert made == [[7, 7], [7]]
    print(asked)

    one.close()
    # An adopted one stays as a zombie: whoever has it here reaps nobody.
    patience.until(lambda: all(map(patience.has_ended, mine)), os.getpid(), 60)
    assert all(process.is_running() for process in others)
    try:
        start(3, tp_size=3)
    except UserError as error:
        print("rejected:", error)
    last = start(4)
    print("left:", last._process.pid, *[process.pid for process in below(last)], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("newer", [False, True])
def test_a_server_of_each_release_is_deaf_to_a_stop_and_ends_with_its_trainer(tmp_path, newer):
    srt = tmp_path / "sglang" / "srt"
    (srt / "entrypoints").mkdir(parents=True)
    (srt / "server_args.py").write_text(SERVER_ARGS)
    (srt / "entrypoints" / "engine.py").write_text(ENGINE.format(newer=newer))
    (srt / "entrypoints" / "http_server.py").write_text(HTTP_SERVER)
    for name, text in (("torch", TORCH), ("sgl_kernel", ""), ("torchvision", "")):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    asked, rejected, left = done.stdout.splitlines()
    sent = ["update_weights_from_tensor [True, True] False"] * 2
    assert ast.literal_eval(asked) == [
        *("release_memory_occupation", "resume_memory_occupation"),
        *(["begin_weight_update", *sent, "end_weight_update"] if newer else sent),
        "flush_cache",
    ]
    assert rejected == "rejected: SGLang rejects the settings: tp_size must divide the heads"
    patience.until(lambda: all(map(has_ended, left.split()[1:])), os.getpid(), 20)


def has_ended(pid):
    try:
        return patience.has_ended(psutil.Process(int(pid)))
    except psutil.NoSuchProcess:
        return True
