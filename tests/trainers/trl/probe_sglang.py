"""Run in the SGLang stack: a real attempt, `probe_sglang.py ATTEMPT OUT STALE`.

Its first batch is a slow one, and at the step STALE the sync is left out. When SGLang is about to be closed, OUT gets
JSON: its settings, its files in shared memory, and what came of requests without the run's secret and of killing its
scheduler.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from engines.sglang.client import EngineEnded, Sglang
from node.attempt import exit_code
from node.hardware import process_tree
from tests import guarded
from trainers.trl.driver import engines, train

# What SGLang's own check lets pass, or let pass with a Starlette that believes the header Host; the last is open.
WITHOUT_SECRET = (
    ("POST", "/update_weights_from_tensor", {"Host": "x/health?"}),
    *(("GET", path, {}) for path in ("/health_generate", "/health/x", "/openapi.json")),
    ("GET", "/health", {}),
)


def scheduler():
    """SGLang's process with the weights."""
    (found,) = (pid for pid in process_tree() if Path(f"/proc/{pid}/cmdline").read_text().startswith("sglang::sched"))
    return found


def forgetful(stale):
    original = engines.SglangRollout.__call__

    def call(self, prompts, trainer):
        if trainer.state.global_step == stale:
            self._synced = stale
        return original(self, prompts, trainer)

    engines.SglangRollout.__call__ = call


class Slow(dict):
    def __getitem__(self, name):
        time.sleep(1 / 8)
        return super().__getitem__(name)


def slowed():
    """The first batch of eight takes a second until it has token ids, and two while its answer is read."""
    ask, waits = Sglang._ask, [1]

    def slowly(engine, path, **body):
        answer = ask(engine, path, **body)
        if path == "generate" and waits:
            time.sleep(waits.pop())
            answer = [{**one, "meta_info": Slow(one["meta_info"])} for one in answer]
        return answer

    Sglang._ask = slowly


def failure(engine):
    """What SGLang says of a request that it cannot answer."""
    try:
        engine.generate([[1]], {"max_new_tokens": 12})
    except RuntimeError as error:
        return [isinstance(error, EngineEnded), str(error)]


def killed(out):
    """Has the engine lose its scheduler when it is about to be closed."""
    close = Sglang.close

    def kill_and_close(self):
        url = f"http://127.0.0.1:{self._port}"
        said = {"without": [guarded.status(url, *one)[0] for one in WITHOUT_SECRET], "settings": self.settings()}
        maps = Path(f"/proc/{scheduler()}/maps").read_text()
        said["shared"] = [line for line in maps.splitlines() if "sglang_" in line]
        secret, self._secret = self._secret, "another"
        said["stranger"] = failure(self)
        self._secret = secret
        os.kill(scheduler(), signal.SIGKILL)
        said["killed"] = failure(self)
        out.write_text(json.dumps(said))
        close(self)

    Sglang.close = kill_and_close


if __name__ == "__main__":
    forgetful(int(sys.argv[3]))
    slowed()
    killed(Path(sys.argv[2]))
    sys.argv[2:] = []
    sys.exit(exit_code(train.train))
