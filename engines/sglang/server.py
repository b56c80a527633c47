"""SGLang's own HTTP server, a child process of the trainer: `python -m engines.sglang.server` (started by client.py).

It reads its request as JSON from stdin: `{parent, secret, settings}`. When it is ready it writes a JSON line to
stdout; all other output goes to stderr. SGLang's further processes import this module before SGLang.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any, TextIO

from common.errors import UserError
from engines.sglang import hooks, standins
from node.exit_codes import FAILED, STOP_SIGNALS, one_line, run
from node.guard import SecretGuard
from node.hardware import importing
from node.ranks import describe_exit, die_with_parent

if __name__ in ("__main__", "__mp_main__"):  # the server, and the processes that it spawns
    die_with_parent()
    standins.install()

_JOIN_S = 5.0
"""Time for an exit status, which comes a moment after the kernel closes a process's files."""


def main() -> None:
    """Serve until a process of SGLang ends; `UserError` for settings that SGLang rejects."""
    request = json.load(sys.stdin)
    if os.getppid() != request["parent"]:
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _ignore_stops()
    # Tensors of the trainer's process are received with its key.
    multiprocessing.current_process().authkey = bytes.fromhex(request["secret"])
    # The files of its sockets, which nobody needs when all have connected.
    sockets = tempfile.TemporaryDirectory(prefix="sglang-")
    tempfile.tempdir = sockets.name

    with importing():
        launch_server, server_arguments = hooks.LAUNCH.get(), hooks.ARGUMENTS.get()

    if request["settings"].get("device") == "cpu":
        # Prompts and completions are token ids, so that its detokenizer only costs CPU time at the start.
        hooks.DETOKENIZER.replace(classmethod(lambda *_, **__: ([], [])))

    def ready() -> None:
        """Run in a thread of SGLang's after its first request."""
        tempfile.tempdir = None
        sockets.cleanup()
        answer = {
            "shards": arguments.tp_size,
            "stand_ins": standins.installed(),
            # From 0.5.23 on an update of the weights has a begin and an end.
            "update_sessions": hooks.UPDATE_SESSION.find() is not None,
        }
        run(lambda: _watch(answers, answer))
        os._exit(FAILED)

    # SGLang's own requests have this header, too.
    hooks.APP.get().add_middleware(SecretGuard, name="Authorization", value=f"Bearer {request['secret']}")
    try:
        arguments = server_arguments(**request["settings"], api_key=request["secret"])
        launch_server(arguments, launch_callback=ready)
    except (TypeError, ValueError) as error:
        raise UserError(f"SGLang rejects the settings: {one_line(error)}") from error


def _ignore_stops() -> None:
    """Ignore the job's stop signals, in SGLang's processes, too.

    Slurm sends them to all processes of a job, but the trainer needs its engine to finish the step.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # those that came before
    # Blocked, since SGLang has handlers of its own. Python's resource tracker, which starts with the first of SGLang's
    # processes, unblocks SIGTERM when it starts.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _watch(answers: TextIO, answer: Mapping[str, Any]) -> None:
    """Answer the trainer, and wait for the end of any of SGLang's processes, which is an error.

    SGLang 0.4.6 does not watch its processes, and later releases ignore an end with status 0.
    """
    children = multiprocessing.active_children()
    for child in children:
        # SGLang never deletes it; it stays usable where it is open.
        for file in re.findall(r"/dev/shm/sglang_\S+", Path(f"/proc/{child.pid}/maps").read_text(encoding="utf-8")):
            Path(file).unlink(missing_ok=True)
    print(json.dumps(answer), file=answers, flush=True)
    first = connection.wait([child.sentinel for child in children])[0]
    ended = next(child for child in children if child.sentinel == first)
    ended.join(_JOIN_S)
    for child in children:
        child.kill()
    how = "ended" if ended.exitcode is None else describe_exit(ended.exitcode)
    raise UserError(f"a process of SGLang's server {how}")


if __name__ == "__main__":
    sys.exit(run(main))
