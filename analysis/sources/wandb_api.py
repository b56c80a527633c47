"""Download a finished run from wandb's server into a cache: `python -m analysis.sources.wandb_api ENTITY/PROJECT/ID`.

On a cluster whose nodes have no network this can be done beforehand, where there is one. The cache is private, as the
runs may be: nobody else can read it, and no key gets into it.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from common.errors import UserError
from common.files import read_json_object
from common.retry import interruptible_sleep

RUN_FILE = "run.json"
HISTORY_PARTS = "history-*.jsonl"
# Steps of wandb's own counter in one page, and in one part of the cache.
PAGE = 1000
# Refusals (429), server errors and silence are waited out: 2 s, doubled up to a minute, some five minutes in all.
FIRST_WAIT_S, LONGEST_WAIT_S, TRIES = 2.0, 60.0, 10
# A server that never answered at all is more likely not there.
TRIES_OF_THE_FIRST = 3
ENDED = ("finished", "crashed", "failed", "killed", "preempted")
FILES = ("wandb-metadata.json", "requirements.txt")

_NAME = re.compile(r"(?!\.)[^/\s]+/(?!\.)[^/\s]+/(?!\.)[^/\s]+")
T = TypeVar("T")


def download(name: str, cache: Path) -> Path:
    """The cache's folder of a run, after downloading what it lacks; a run that is whole there is not asked for again.

    An interrupted download goes on where it was. `UserError` when there is no such run, key or network, or when the
    run still runs: what it logs later would change the numbers.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"a run on wandb is named entity/project/id, as in its address (got {name!r})")
    folder = cache.joinpath(*name.split("/"))
    if is_whole(folder):
        return folder
    # wandb's client leaves files where it runs, and takes a second to import: it gets a process of its own.
    folder.mkdir(parents=True, exist_ok=True)
    for made in (cache, *(cache.joinpath(*name.split("/")[: i + 1]) for i in range(3))):
        made.chmod(0o700)
    with _one_at_a_time(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".wandb-") as scratch:
        if is_whole(folder):  # another process did it in the meantime
            return folder
        own = {f"WANDB_{what}_DIR": scratch for what in ("CACHE", "DATA", "ARTIFACT")} | {"WANDB_DIR": scratch}
        fetch = [sys.executable, "-m", "analysis.sources.wandb_api", name, "--into", str(folder)]
        fetch += ["--first-wait-s", str(FIRST_WAIT_S), "--tries", str(TRIES)]
        own |= {"WANDB_ERROR_REPORTING": "false"}
        env = {key: value for key, value in os.environ.items() if key not in ("WANDB_MODE", "WANDB_SERVICE")}
        done = subprocess.run(fetch, env=env | own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0 or not is_whole(folder):
        said = done.stdout.strip().splitlines()
        told = said[-1] if said else f"the download ended with status {done.returncode}"
        raise UserError(told.removeprefix("error: "))
    return folder


def is_whole(folder: Path) -> bool:
    """Whether the cache holds all of a run."""
    about = folder / RUN_FILE
    return about.is_file() and read_json_object(about, "the download from wandb").get("complete") is True


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with os.fdopen(os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(name: str, folder: Path, calls: _Patient) -> None:
    """Download a run into its folder of the cache, with wandb's public API (imported here: it takes a second)."""
    import wandb

    entity, project, _ = name.split("/")
    # wandb's client tries twice itself; what it cannot do is told and waited out here. Silent: it never prompts.
    first_wait_s = calls.first_wait_s
    wandb.setup(
        wandb.Settings(
            silent=True,
            x_graphql_retry_max=1,
            x_graphql_retry_wait_min_seconds=min(1.0, first_wait_s),
            x_graphql_retry_wait_max_seconds=min(2.0, first_wait_s),
            x_graphql_timeout_seconds=30,
            x_file_transfer_retry_max=2,
            x_file_transfer_retry_wait_min_seconds=min(1.0, first_wait_s),
            x_file_transfer_retry_wait_max_seconds=min(2.0, first_wait_s),
        )
    )
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
    _forget_if_changed(folder, about)
    for file in calls(lambda: list(run.files(names=list(FILES)))):
        text = calls(lambda file=file: _text_of(file))  # type: ignore[misc]
        about |= {"metadata": json.loads(text)} if file.name == FILES[0] else {"requirements": text.splitlines()}
    _write_private(folder / RUN_FILE, json.dumps(about))
    rows = _fetch_history(run, folder, last_step, calls)
    _write_private(folder / RUN_FILE, json.dumps(about | {"complete": True, "rows": rows}))


def _text_of(file: Any) -> str:
    """The content of one of the run's files."""
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("WANDB_CACHE_DIR")) as folder,
        file.download(root=folder, replace=True) as opened,
    ):
        text: str = opened.read()
        return text


def _forget_if_changed(folder: Path, about: dict[str, Any]) -> None:
    """Delete an unfinished download of a run that went on since."""
    before = read_json_object(folder / RUN_FILE, "the download") if (folder / RUN_FILE).is_file() else {}
    if any(before.get(key) != about[key] for key in ("heartbeat_at", "last_step", "history_lines")):
        for part in folder.glob(HISTORY_PARTS):
            part.unlink()


def _fetch_history(run: Any, folder: Path, last_step: int, calls: _Patient) -> int:
    """Write all rows in parts of `PAGE` steps of wandb's counter; how many there are.

    All keys of all rows are asked for: with a choice of keys wandb gives only rows that hold them all, and its
    `history` is a sample.
    """
    starts = range(0, last_step + 1, PAGE)
    missing = [start for start in starts if not _part(folder, start).is_file()]
    if missing:
        scan = calls(lambda: run.scan_history(page_size=PAGE, min_step=missing[0]))
        rows: dict[int, dict[str, Any]] = {}
        for start in range(missing[0], last_step + 1, PAGE):
            while (row := calls(lambda: next(scan, None))) is not None:
                # Where the exported part of a history meets the live one, a row can come twice.
                step = int(row["_step"])
                rows[step] = {**rows.get(step, {}), **row}
                # The page's last row, or, where that is missing, one of the next page, which is kept for it.
                if step >= start + PAGE - 1:
                    break
            page = {step: row for step, row in rows.items() if start <= step < start + PAGE}
            rows = {step: row for step, row in rows.items() if step >= start + PAGE}
            _write_private(_part(folder, start), "".join(json.dumps(page[step]) + "\n" for step in sorted(page)))
            print(f"wandb {run.id}: {min(start + PAGE, last_step + 1)} of {last_step + 1} rows", file=sys.stderr)
    counted = 0
    for start in starts:
        counted += _part(folder, start).read_text(encoding="utf-8").count("\n")
    return counted


def _part(folder: Path, start: int) -> Path:
    return folder / f"history-{start:09d}.jsonl"


def _write_private(path: Path, text: str) -> None:
    """Write through a temporary name, so that the file is whole or absent, for nobody else's eyes."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)


class _Patient:
    """Calls wandb's client again after what passes, and says in words what does not."""

    def __init__(self, name: str, first_wait_s: float, tries: int) -> None:
        self.name, self.first_wait_s, self.tries = name, first_wait_s, tries
        self.answered = False

    def __call__(self, call: Callable[[], T]) -> T:
        wait_s = self.first_wait_s
        for tried in range(1, self.tries + 1):
            try:
                found = call()
            except Exception as error:
                passing, why = _told(error, self.name)
                self.answered |= any(_status(one) for one in _chain(error))
                if not passing or tried >= (self.tries if self.answered else min(self.tries, TRIES_OF_THE_FIRST)):
                    if passing and not self.answered:
                        why += (
                            ". No network here? Download it beforehand, on a machine that has one: "
                            f"python -m analysis.sources.wandb_api {self.name} --cache .wandb-cache"
                        )
                    raise UserError(why) from None
                wait_s = min(wait_s, LONGEST_WAIT_S)
                print(f"wandb {self.name}: {why}; trying again in {wait_s:.0f} s", file=sys.stderr, flush=True)
                # Runs that are downloaded side by side are refused together, and should not come back together.
                interruptible_sleep(wait_s * random.uniform(0.75, 1.25))
                wait_s *= 2
            else:
                self.answered = True
                return found
        raise AssertionError("unreachable")


def _chain(error: BaseException) -> list[BaseException]:
    """An error, and those that led to it."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    return chain


def _told(error: BaseException, name: str) -> tuple[bool, str]:
    """(whether it may pass, what to say) about an error of wandb's client."""
    chain = _chain(error)
    names = {type(one).__name__ for one in chain}
    status = next((s for one in chain if (s := _status(one))), None)
    message = re.sub(r".*giving up after \d+ attempt\(s\): ", "", " ".join(str(error).split()))
    if key := os.environ.get("WANDB_API_KEY"):
        message = message.replace(key, "(the key)")
    site = os.environ.get("WANDB_BASE_URL", "")
    at = f" at {site}" if site else ""
    if "UsageError" in names and "No API key" in message:
        return False, (
            f"reading wandb run {name} needs a key{at}: run `wandb login`, or set WANDB_API_KEY. A run's folder on "
            "disk (wandb/offline-run-...) needs none"
        )
    if "AuthenticationError" in names and status is None and "invalid" in message:
        return False, f"wandb's key is no key ({message.rstrip('.')}): run `wandb login`, or set WANDB_API_KEY anew"
    if status == 401:
        return False, f"wandb{at} does not accept the key: run `wandb login --relogin`, or set WANDB_API_KEY anew"
    if status == 403:
        return False, f"the key{at} may not read wandb run {name}: ask for access to the project, or use another key"
    if "RunNotFoundError" in names or status == 404 or "Could not find run" in message:
        return False, (
            f"wandb{at} has no run {name} that this key may see: copy entity/project/id from the run's address "
            "(the id is its last part, not the shown name), and check that the key's account may see the project"
        )
    if status == 429:
        return True, f"wandb{at} asks to slow down (429)"
    if status is None or status == 408 or status >= 500:
        cause = f"status {status}" if status else message[:200]
        return True, f"wandb{at} gave no answer about run {name} ({cause})"
    return False, f"wandb{at} refused to give run {name} (status {status}: {message[:300]})"


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error carries or tells."""
    response = getattr(error, "response", None)
    status = getattr(response, "http_status", None) or getattr(response, "status_code", None)
    if status:
        return int(status)
    told = re.search(
        r"(?:HTTP|status)[ :]+(?:code )?(\d{3})\b|\b(\d{3}) (?:Too Many|Unauthorized|Forbidden)", str(error)
    )
    return int(told.group(1) or told.group(2)) if told else None


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
            fetch(args.name, args.into, _Patient(args.name, args.first_wait_s, args.tries))
        elif args.cache is not None:
            print(download(args.name, args.cache))
        else:
            parser.error("--cache is needed")
    except UserError as error:
        # The process that downloads tells the one that asked for it, which tells the person.
        print(f"error: {error}", file=sys.stdout if args.into is not None else sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
