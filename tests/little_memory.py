"""Runs commands for tests in one process with little memory: an order is a line of JSON, and so is its answer."""

import contextlib
import importlib
import io
import json
import os
import resource
import sys
import time
import traceback

LIMIT = 4 << 30  # bytes of address space, of which the libraries take a part


def answer(order):
    """The exit code of a command, all that it said, and the CPU time that it took."""
    from workflow.cli import main

    os.chdir(order["cwd"])
    said, began = io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(order["words"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # the interpreter would print it, and exit with 1
            traceback.print_exc(file=said)
            code = 1
    return {"code": code, "said": said.getvalue(), "cpu_s": time.process_time() - began}


if __name__ == "__main__":
    for name in ("workflow.commands.compare", "workflow.commands.ab", "workflow.commands.new_from_script"):
        importlib.import_module(name)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
