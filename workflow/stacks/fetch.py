"""Fetches files through pip's own session: its proxies, certificates, passwords and retries."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import UserError
from workflow.stacks.sources import redacted

# pip's session, made as `pip download` makes it. `pip download` itself runs an sdist's setup.py, and cannot go on
# with half a file (docs/decisions.md).
_ASK_PIP = """
import json, os, sys
from pip._internal.commands import create_command
from pip._vendor.requests.exceptions import RequestException
from pip._vendor.urllib3.exceptions import HTTPError
PLAIN = {"Accept-Encoding": "identity"}
def size(session, url):
    answer = session.head(url, headers=PLAIN, allow_redirects=True)
    length = answer.headers.get("Content-Length")
    return {"size": int(length) if answer.status_code == 200 and length else None}
def fetch(session, url, path):
    for _ in range(5):
        have = os.path.getsize(path) if os.path.exists(path) else 0
        answer = session.get(url, headers={**PLAIN, "Range": f"bytes={have}-"} if have else PLAIN, stream=True)
        on = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if answer.status_code not in {200, 206, 416}:
            return {"problem": f"{answer.status_code} {answer.reason}"}
        if answer.status_code != 200 and not on:
            os.unlink(path)
            continue
        length = answer.headers.get("Content-Length")
        whole = None if length is None else int(length) + (have if on else 0)
        problem = "the connection ended early"
        with open(path, "ab" if on else "wb") as file:
            try:
                for block in iter(lambda: answer.raw.read(1 << 20), b""):
                    file.write(block)
            except (RequestException, HTTPError) as error:
                problem, whole = str(error), whole or -1
        if whole is None or os.path.getsize(path) == whole:
            return {}
    return {"problem": problem}
command = create_command("download")
with command.main_context():
    session = command.get_default_session(command.parse_args(["--no-cache-dir"])[0])
    for number, (url, path) in enumerate(json.load(sys.stdin)):
        try:
            outcome = fetch(session, url, path) if path else size(session, url)
        except Exception as error:
            outcome = {"problem": f"{type(error).__name__}: {error}", "errno": getattr(error, "errno", None)}
        print(json.dumps({"number": number, **outcome}), flush=True)
"""


def sizes(urls: list[str]) -> list[int | None]:
    """Size in bytes of what lies at each address, None where its server does not tell."""
    return [outcome.get("size") for outcome in _ask_pip([(url, None) for url in urls])]


def fetched(files: list[tuple[str, Path]]) -> Iterator[int]:
    """Fetches each address to its path, going on with what is there; yields the number of each one that is whole.

    UserError names the one that could not be fetched, OSError says that the disk is full; those before it are there.
    """
    for outcome in _ask_pip([(url, str(path)) for url, path in files]):
        if outcome.get("errno") in {errno.ENOSPC, errno.EDQUOT}:
            raise OSError(outcome["errno"], outcome["problem"])
        if "problem" in outcome:
            raise UserError(
                f"{redacted(files[outcome['number']][0])} could not be fetched: {redacted(outcome['problem'])}\n"
                "What was fetched stays: run again to go on. Proxy, certificates and passwords are pip's own settings "
                f"(`{sys.executable} -m pip config debug`)."
            )
        yield outcome["number"]


def _ask_pip(jobs: list[tuple[str, str | None]]) -> Iterator[dict[str, Any]]:
    if not jobs:
        return
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-I", "-c", _ASK_PIP]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: its exit status and its output say why
                process.stdin.write(json.dumps(jobs))
                process.stdin.close()
            for line in process.stdout:
                yield json.loads(line)
            if process.wait() != 0:
                errors.seek(0)
                last = redacted(errors.read()).strip().splitlines()[-1:] or ["no message"]
                raise UserError(f"pip's network settings cannot be used: {last[0]}")
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
