"""How are files fetched as pip would fetch them: through its proxies, certificates, passwords and retries?"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import UserError
from workflow.stacks.sources import redacted

# pip's own session, made as `pip download` makes it. `pip download` itself would run an sdist's setup.py to learn its
# name, cannot go on with half a file, and fetches nothing at all when one of many files is missing.
_ASK_PIP = """
import errno, json, os, sys
from pip._internal.commands import create_command
from pip._vendor.requests.exceptions import RequestException
from pip._vendor.urllib3.exceptions import HTTPError
PLAIN = {"Accept-Encoding": "identity"}
def size(session, url):
    answer = session.head(url, headers=PLAIN, allow_redirects=True)
    length = answer.headers.get("Content-Length")
    return int(length) if answer.status_code == 200 and length else None
def fetch(session, url, path):
    for _ in range(5):
        have = os.path.getsize(path) if os.path.exists(path) else 0
        headers = {**PLAIN, "Range": f"bytes={have}-"} if have else PLAIN
        answer = session.get(url, headers=headers, stream=True)
        on = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if answer.status_code not in {200, 206, 416}:
            return f"{answer.status_code} {answer.reason}"
        if answer.status_code == 416 or (answer.status_code == 206 and not on):
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
            return None
    return problem
jobs = json.load(sys.stdin)
command = create_command("download")
with command.main_context():
    session = command.get_default_session(command.parse_args(["--no-cache-dir"])[0])
    for number, job in enumerate(jobs):
        told = {"number": number, "size": None, "problem": None}
        try:
            if job["path"] is None:
                told["size"] = size(session, job["url"])
            else:
                told["problem"] = fetch(session, job["url"], job["path"])
        except OSError as error:  # requests' errors are OSErrors, too
            told["problem"] = str(error) or type(error).__name__
            told["full"] = error.errno in (errno.ENOSPC, errno.EDQUOT)
        except Exception as error:
            told["problem"] = f"{type(error).__name__}: {error}"
        print(json.dumps(told), flush=True)
        if told.get("full"):
            break
"""


def sizes(urls: list[str]) -> list[int | None]:
    """Size in bytes of what lies at each address, None where its server does not tell."""
    found: list[int | None] = [None] * len(urls)
    for told in _ask([{"url": url, "path": None} for url in urls]):
        found[told["number"]] = told["size"]
    return found


def fetched(files: list[tuple[str, Path]]) -> Iterator[int]:
    """Fetches each address to its path, going on with what is there; yields the number of each one that is whole.

    UserError tells the one that could not be had; those before it are there.
    """
    for told in _ask([{"url": url, "path": str(path)} for url, path in files]):
        url = redacted(files[told["number"]][0])
        if told.get("full"):
            raise OSError(28, "No space left on device")
        if told["problem"]:
            raise UserError(
                f"{url} could not be fetched: {redacted(told['problem'])}\nWhat was fetched stays: run again to go on. "
                f"Proxy, certificates and passwords are pip's own settings (`{sys.executable} -m pip config debug`)."
            )
        yield told["number"]


def _ask(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _ASK_PIP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: its exit status and words say why
                process.stdin.write(json.dumps(jobs))
                process.stdin.close()
            for line in process.stdout:
                yield json.loads(line)
            if process.wait() != 0:
                said.seek(0)
                last = redacted(said.read()).strip().splitlines()[-1:] or ["no message"]
                raise UserError(f"pip's network settings cannot be used: {last[0]}")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            process.stdout.close()
