"""Download a finished run from wandb's server into a cache: `python -m analysis.sources.wandb_api ENTITY/PROJECT/ID`.

Run it on a machine with a network when the cluster's nodes have none. Only the user can read the cache, and no key is
written to it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from common.errors import UserError
from common.files import read_json_object, write_private
from common.retry import interruptible_sleep
from common.shown import shown_output

RUN_FILE = "run.json"
HISTORY_PARTS = "history-*.jsonl"
# Steps of wandb's own counter in one page, and in one file of the cache.
PAGE = 1000
# Refusals (429), server errors and timeouts are retried: after 2 s, doubled up to a minute, five minutes in all.
FIRST_WAIT_S, LONGEST_WAIT_S, TRIES = 2.0, 60.0, 10
# A server that never answered is probably unreachable.
TRIES_WITHOUT_ANSWER = 3
ENDED = ("finished", "crashed", "failed", "killed", "preempted")
FILES = ("wandb-metadata.json", "requirements.txt")

_NAME = re.compile(r"(?!\.)[^/\s]+/(?!\.)[^/\s]+/(?!\.)[^/\s]+")
_STATUS = re.compile(r"(?:HTTP|status)[ :]+(?:code )?(\d{3})\b|\b(\d{3}) (?:Too Many|Unauthorized|Forbidden)")
T = TypeVar("T")


def download(name: str, cache: Path) -> Path:
    """The run's folder in the cache, after downloading what is missing; a complete run is not requested again.

    An interrupted download continues where it stopped. `UserError` when the run, the key or the network is missing, or
    when the run is still running: it would log more.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"a run on wandb is named entity/project/id, as in its address (got {name!r})")
    folder = cache.joinpath(*name.split("/"))
    if is_complete(folder):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for private in (cache, folder.parent.parent, folder.parent, folder):
        private.chmod(0o700)
    with (
        os.fdopen(os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock,
        tempfile.TemporaryDirectory(dir=folder, prefix=".wandb-") as scratch,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete(folder):  # another process downloaded it in the meantime
            return folder
        # wandb's client writes files where it runs and takes a second to import, so it runs in its own process. In the
        # user's folder it would import a json.py from there, and send the key where ./wandb/settings says.
        fetch = [sys.executable, "-P", "-m", "analysis.sources.wandb_api", name, "--into", str(folder.absolute())]
        fetch += ["--first-wait-s", str(FIRST_WAIT_S), "--tries", str(TRIES)]
        env = {key: value for key, value in os.environ.items() if key not in ("WANDB_MODE", "WANDB_SERVICE")}
        folders = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")
        env |= dict.fromkeys(folders, str(Path(scratch).absolute())) | {"WANDB_ERROR_REPORTING": "false"}
        done = subprocess.run(fetch, cwd=scratch, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0 or not is_complete(folder):
        *_, last_line = ["", *done.stdout.strip().splitlines()]
        raise UserError(last_line.removeprefix("error: ") or f"the download ended with status {done.returncode}")
    return folder


def is_complete(folder: Path) -> bool:
    """Whether the cache has the whole run."""
    about = folder / RUN_FILE
    return about.is_file() and read_json_object(about, "the download from wandb").get("complete") is True


def fetch(name: str, folder: Path, calls: _RetriedCalls) -> None:
    """Downloads a run into its folder of the cache, with wandb's public API (imported here: it takes a second)."""
    import wandb

    entity, project, _ = name.split("/")
    # wandb's client retries twice; `calls` handles what is left. `silent`: it never prompts.
    shortest_s, longest_s = min(1.0, calls.first_wait_s), min(2.0, calls.first_wait_s)
    calls.host = wandb.setup(
        wandb.Settings(
            silent=True,
            x_graphql_retry_max=1,
            x_graphql_retry_wait_min_seconds=shortest_s,
            x_graphql_retry_wait_max_seconds=longest_s,
            x_graphql_timeout_seconds=30,
            x_file_transfer_retry_max=2,
            x_file_transfer_retry_wait_min_seconds=shortest_s,
            x_file_transfer_retry_wait_max_seconds=longest_s,
        )
    ).settings.base_url
    api = calls(lambda: wandb.Api(overrides={"entity": entity, "project": project}, timeout=60))
    run = calls(lambda: api.run(name))
    if run.state not in ENDED:
        raise UserError(
            f"wandb run {name} is {run.state}: what it logs later would change the numbers. Import it when it has ended"
        )
    last_step = calls(lambda: run.lastHistoryStep)
    about = {
        "name": name,
        "state": run.state,
        "created_at": run.created_at,
        "heartbeat_at": run.heartbeat_at,
        "last_step": last_step,
        "history_lines": run.history_line_count,
        "config": dict(run.config),
        "summary": dict(run.summary_metrics or {}),
        "complete": False,
    }
    before = read_json_object(folder / RUN_FILE, "the download") if (folder / RUN_FILE).is_file() else {}
    if any(before.get(key) != about[key] for key in ("heartbeat_at", "last_step", "history_lines")):
        # The run logged more since the unfinished download.
        for part in folder.glob(HISTORY_PARTS):
            part.unlink()
    for file in calls(lambda: list(run.files(names=list(FILES)))):
        text = calls(lambda file=file: _text_of(file))  # type: ignore[misc]
        about |= {"metadata": json.loads(text)} if file.name == FILES[0] else {"requirements": text.splitlines()}
    write_private(folder / RUN_FILE, json.dumps(about).encode())
    rows = _fetch_history(run, folder, last_step, calls)
    write_private(folder / RUN_FILE, json.dumps(about | {"complete": True, "rows": rows}).encode())


def _text_of(file: Any) -> str:
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("WANDB_CACHE_DIR")) as folder,
        file.download(root=folder, replace=True) as opened,
    ):
        text: str = opened.read()
        return text


def _fetch_history(run: Any, folder: Path, last_step: int, calls: _RetriedCalls) -> int:
    """Writes all rows, one file for each `PAGE` steps of wandb's counter; returns the number of rows.

    It requests all keys of all rows: with a choice of keys wandb gives only rows that have them all, and its `history`
    is a sample.
    """
    parts = {start: folder / f"history-{start:09d}.jsonl" for start in range(0, last_step + 1, PAGE)}
    missing = [start for start, part in parts.items() if not part.is_file()]
    if missing:
        scan = calls(lambda: run.scan_history(page_size=PAGE, min_step=missing[0]))
        rows: dict[int, dict[str, Any]] = {}
        for start in range(missing[0], last_step + 1, PAGE):
            while (row := calls(lambda: next(scan, None))) is not None:
                # A row can come twice where the exported part of a history meets the live one.
                step = int(row["_step"])
                rows[step] = {**rows.get(step, {}), **row}
                # The page's last row or, where that is missing, a row of the next page, which is kept for it.
                if step >= start + PAGE - 1:
                    break
            page = {step: row for step, row in rows.items() if start <= step < start + PAGE}
            rows = {step: row for step, row in rows.items() if step >= start + PAGE}
            write_private(parts[start], "".join(json.dumps(page[step]) + "\n" for step in sorted(page)).encode())
            print(f"wandb {run.id}: {min(start + PAGE, last_step + 1)} of {last_step + 1} rows", file=sys.stderr)
    return sum(part.read_text(encoding="utf-8").count("\n") for part in parts.values())


class _RetriedCalls:
    """Calls wandb's client, retries temporary errors, and raises a `UserError` for the others."""

    def __init__(self, name: str, first_wait_s: float, tries: int) -> None:
        self.name, self.first_wait_s, self.tries = name, first_wait_s, tries
        self.host = "wandb's server"
        self.answered = False

    def __call__(self, call: Callable[[], T]) -> T:
        wait_s, tried = self.first_wait_s, 0
        while True:
            tried += 1
            try:
                found = call()
            except Exception as error:
                temporary, text, status = _explained(error, self.name, self.host)
                self.answered |= status is not None
                if not temporary or tried >= (self.tries if self.answered else min(self.tries, TRIES_WITHOUT_ANSWER)):
                    if temporary and not self.answered:
                        text += (
                            ". No network here? Download it beforehand, on a machine that has one: "
                            f"python -P -m analysis.sources.wandb_api {self.name} --cache .wandb-cache"
                        )
                    raise UserError(text) from None
                wait_s = min(wait_s, LONGEST_WAIT_S)
                print(f"wandb {self.name}: {text}; trying again in {wait_s:.0f} s", file=sys.stderr, flush=True)
                # Random, because parallel downloads are refused together and should not retry together.
                interruptible_sleep(wait_s * random.uniform(0.75, 1.25))
                wait_s *= 2
            else:
                self.answered = True
                return found


def _explained(error: BaseException, name: str, host: str) -> tuple[bool, str, int | None]:
    """Whether an error of wandb's client is temporary, its message for the user, and its HTTP status."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    types = {type(one).__name__ for one in chain}
    status = next((found for one in chain if (found := _status(one))), None)
    message = re.sub(r".*giving up after \d+ attempt\(s\): ", "", " ".join(str(error).split()))
    if key := os.environ.get("WANDB_API_KEY"):
        message = message.replace(key, "(the key)")
    not_found = "RunNotFoundError" in types or status == 404 or "Could not find run" in message
    # The first line that applies counts.
    explanations = (
        (
            "UsageError" in types and "No API key" in message,
            f"reading wandb run {name} needs a key at {host}: run `wandb login`, or set WANDB_API_KEY. A run's "
            "folder on disk (wandb/offline-run-...) needs none",
        ),
        (
            "AuthenticationError" in types and status is None and "invalid" in message,
            f"wandb's key is invalid at {host} ({message.rstrip('.')}): run `wandb login`, or set WANDB_API_KEY again",
        ),
        (
            status == 401,
            f"wandb at {host} does not accept the key: run `wandb login --relogin`, or set WANDB_API_KEY again",
        ),
        (
            status == 403,
            f"the key at {host} may not read wandb run {name}: ask for access to the project, or use another key",
        ),
        (
            not_found,
            f"wandb at {host} has no run {name} that this key may see: copy entity/project/id from the run's address "
            "(the id is its last part, not the shown name), and check that the key's account may see the project",
        ),
    )
    if permanent := next((text for applies, text in explanations if applies), None):
        return False, permanent, status
    if status == 429:
        return True, f"wandb at {host} asks to slow down (429)", status
    if status is None or status == 408 or status >= 500:
        reason = f"status {status}" if status else message[:200]
        return True, f"wandb at {host} gave no answer about run {name} ({reason})", status
    return False, f"wandb at {host} refused to give run {name} (status {status}: {message[:300]})", status


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error has as an attribute or in its text."""
    response = getattr(error, "response", None)
    status = getattr(response, "http_status", None) or getattr(response, "status_code", None)
    found = None if status else _STATUS.search(str(error))
    return int(status) if status else int(found[1] or found[2]) if found else None


@shown_output()
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.sources.wandb_api", description=__doc__)
    parser.add_argument("name", metavar="ENTITY/PROJECT/ID")
    parser.add_argument("--cache", type=Path, help="the folder of all downloaded runs")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first-wait-s", type=float, default=FIRST_WAIT_S, help=argparse.SUPPRESS)
    parser.add_argument("--tries", type=int, default=TRIES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        if args.into is not None:
            fetch(args.name, args.into, _RetriedCalls(args.name, args.first_wait_s, args.tries))
        elif args.cache is not None:
            print(download(args.name, args.cache))
        else:
            parser.error("--cache is needed")
    except UserError as error:
        # The downloading process reports to its parent on stdout.
        print(f"error: {error}", file=sys.stdout if args.into is not None else sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
