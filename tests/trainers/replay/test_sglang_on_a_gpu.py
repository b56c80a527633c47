"""SGLang's engine on a GPU, in the shapes of its releases: none of them starts here without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ...importing import ROOT

# As SGLang 0.4.6.post5 has it (srt/entrypoints/engine.py, srt/managers/tokenizer_manager.py): the loop is asyncio's, it
# takes signals over, and its shutdown ends every child.
ENGINE = """
import asyncio, atexit, multiprocessing, os, signal, time
from types import SimpleNamespace

class Engine:
    def __init__(self, model_path, dtype, random_seed, skip_tokenizer_init, log_level, dist_init_addr, tp_size=1):
        self.server_args = SimpleNamespace(tp_size=tp_size, dist_init_addr=dist_init_addr)
        self.send_to_rpc = SimpleNamespace(close=lambda linger: None)
        atexit.register(self.shutdown)
        signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(0, os.WNOHANG))
        signal.signal(signal.SIGQUIT, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        multiprocessing.set_start_method("spawn", force=True)
        for _ in range(tp_size):
            multiprocessing.Process(target=time.sleep, args=(600,), daemon=True).start()
        self.taking = (signal.SIGTERM, signal.SIGQUIT)
        LOOP
    def generate(self, input_ids, sampling_params):
        loop = asyncio.get_event_loop()
        for number in self.__dict__.pop("taking", ()):
            loop.add_signal_handler(number, os._exit, 77)
        loop.run_until_complete(asyncio.sleep(0))
        return [{"output_ids": [7] * one["max_new_tokens"]} for one in sampling_params]
    def shutdown(self):
        raise SystemExit("shutdown ends every child")
"""
PROGRAM = """
import multiprocessing, os, signal, subprocess, sys, time
from pathlib import Path
from engines.sglang.colocate import EngineEnded
from engines.sglang.gpu import SglangOnGpu

if __name__ == "__main__":
    stops = []
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: stops.append(number))
    other = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    engines = [SglangOnGpu(Path("model"), "bfloat16", 3, {"tp_size": 2}) for _ in range(2)]
    closed, killed = (set(one._processes()) for one in engines)
    assert len(closed) == len(killed) == 2 and not closed & killed
    assert len({one._engine.server_args.dist_init_addr for one in engines}) == 2
    deaf = {signal.SIGTERM, signal.SIGUSR2}
    for each in closed | killed:
        status = Path(f"/proc/{each.pid}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert all(blocked >> (number - 1) & 1 for number in deaf), "Slurm's signal would end it"
    for number in deaf:
        os.kill(os.getpid(), number)
    assert set(stops) == deaf
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL

    assert engines[0].tokens([[1], [2]], [{"max_new_tokens": 2}, {"max_new_tokens": 1}]) == [[7, 7], [7]]
    engines[0].close()
    assert not any(one.is_alive() for one in closed) and all(one.is_alive() for one in killed)
    assert other.poll() is None
    other.kill()
    try:
        min(killed, key=lambda one: one.pid).kill()
        time.sleep(60)
    except EngineEnded as error:
        print("named:", error)
    engines[1].close()
"""


@pytest.mark.parametrize("newer", [False, True])
def test_an_engine_of_each_release_is_deaf_to_a_stop_and_ends_alone(tmp_path: Path, newer: bool) -> None:
    loop = "self.loop = asyncio.new_event_loop(); asyncio.set_event_loop(self.loop)" if newer else ""
    engine = tmp_path / "sglang" / "srt" / "entrypoints" / "engine.py"
    engine.parent.mkdir(parents=True)
    engine.write_text(ENGINE.replace("LOOP", loop))
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "named: SGLang's scheduler ended with SIGKILL" in done.stdout
