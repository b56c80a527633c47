"""Programs that stand for others on PATH, and our own without a process of their own."""

import contextlib
import inspect
import io
import os
import signal
import subprocess
import sys
from unittest import mock

from . import planted


def executable(path, text):
    """A program of this text, a shell's if it names no other; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def ran(main, arguments, folder, environ):
    """What a program's `main` does with these arguments in a folder, in this process.

    A process of its own would import for longer than most commands work. What libraries remember of the environment
    stays that of the tests.
    """
    out, err, code = io.StringIO(), io.StringIO(), None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    os.umask(mask := os.umask(0))
    with (
        # What passes between our own programs is printed nowhere.
        mock.patch.object(subprocess.Popen, "communicate", inspect.unwrap(subprocess.Popen.communicate)),
        contextlib.chdir(folder),
        mock.patch.object(sys, "argv", ["program", *map(str, arguments)]),
        mock.patch.dict(os.environ, environ, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
        finally:
            os.umask(mask)
            for number, handler in handlers.items():
                signal.signal(number, handler)
    printed = planted.searched(lambda: (out.getvalue(), err.getvalue()))()
    return subprocess.CompletedProcess(arguments, code or 0, *printed)
