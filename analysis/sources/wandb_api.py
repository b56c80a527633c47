"""Downloads a finished run from wandb's server into a cache.

Only the user can read the cache, and no key is written to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import module_command, read_json_object, write_private
from common.shown import shown_output

RUN_FILE = "run.json"
HISTORY_PARTS = "history*.jsonl"
# Steps of wandb's own counter in one page.
PAGE = 1000
# wandb's client retries refusals (429), server errors and timeouts so often, after 2 s, doubled up to a minute.
PATIENCE = {"max": 6, "wait_min_seconds": 2.0, "wait_max_seconds": 60.0}
ENDED = ("finished", "crashed", "failed", "killed", "preempted")
FILES = ("wandb-metadata.json", "requirements.txt")

_NAME = re.compile(r"(?!\.)[^/\s]+/(?!\.)[^/\s]+/(?!\.)[^/\s]+")


def download(name: str, cache: Path) -> Path:
    """The run's folder in the cache, after downloading it where it is missing.

    `UserError` when the run, the key or the network is missing, or when the run is still running: it would log more.
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
        fetch = [*module_command("analysis.sources.wandb_api"), name, str(folder.absolute())]
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


def fetch(name: str, folder: Path) -> None:
    """Downloads a run into its folder of the cache, with wandb's public API (imported here: it takes a second)."""
    import wandb

    entity, project, _ = name.split("/")
    waits: dict[str, Any] = {
        f"x_{of}_retry_{what}": value for of in ("graphql", "file_transfer") for what, value in PATIENCE.items()
    }
    # `silent`: it never prompts.
    host = wandb.setup(wandb.Settings(silent=True, x_graphql_timeout_seconds=30, **waits)).settings.base_url
    try:
        run = wandb.Api(overrides={"entity": entity, "project": project}, timeout=60).run(name)
        if run.state not in ENDED:
            raise UserError(
                f"wandb run {name} is {run.state}: what it logs later would change the numbers. Import it when it has "
                "ended"
            )
        _write(run, folder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(_explained(error, name, host)) from None


def _write(run: Any, folder: Path) -> None:
    """Writes the history, then what is known of the run, which marks the download as complete."""
    about = {
        "state": run.state,
        "created_at": run.created_at,
        "heartbeat_at": run.heartbeat_at,
        "history_lines": run.history_line_count,
        "config": dict(run.config),
    }
    for file in run.files(names=list(FILES)):
        with (
            tempfile.TemporaryDirectory(dir=os.environ.get("WANDB_CACHE_DIR")) as scratch,
            file.download(root=scratch, replace=True) as opened,
        ):
            text: str = opened.read()
        about |= {"metadata": json.loads(text)} if file.name == FILES[0] else {"requirements": text.splitlines()}
    for part in folder.glob(HISTORY_PARTS):
        part.unlink()
    count = 0
    with os.fdopen(os.open(folder / "history.jsonl", os.O_WRONLY | os.O_CREAT, 0o600), "w") as history:
        for row in _rows(run):
            history.write(json.dumps(row) + "\n")
            count += 1
    write_private(folder / RUN_FILE, json.dumps(about | {"complete": True, "rows": count}).encode())


def _rows(run: Any) -> Iterator[dict[str, Any]]:
    """All rows of the history in its order.

    It requests all keys of all rows: with a choice of keys wandb gives only rows that have them all, and its `history`
    is a sample. A row can come twice where the exported part of a history meets the live one.
    """
    last = run.lastHistoryStep
    page: dict[int, dict[str, Any]] = {}
    end = PAGE
    for row in run.scan_history(page_size=PAGE):
        step = int(row["_step"])
        if step >= end:
            yield from (page.pop(earlier) for earlier in sorted(page))
            end = (step // PAGE + 1) * PAGE
            print(f"wandb {run.id}: {step} of {last + 1} rows", file=sys.stderr)
        page[step] = {**page.get(step, {}), **row}
    yield from (page[step] for step in sorted(page))
    print(f"wandb {run.id}: {last + 1} of {last + 1} rows", file=sys.stderr)


def _explained(error: BaseException, name: str, host: str) -> str:
    """What to do about an error of wandb's client."""
    message = re.sub(r".*giving up after \d+ attempt\(s\): ", "", " ".join(str(error).split()))[:300]
    if key := os.environ.get("WANDB_API_KEY"):
        message = message.replace(key, "(the key)")
    login = "run `wandb login --relogin`, or set WANDB_API_KEY again"
    if "No API key" in message:
        return f"reading wandb run {name} needs a key at {host}: run `wandb login`, or set WANDB_API_KEY"
    status = _status(error)
    if status == 401 or "invalid" in message:
        return f"wandb at {host} does not accept the key: {login} ({message})"
    if status in (403, 404) or "not find run" in message:
        return (
            f"wandb at {host} has no run {name} that this key may see ({message}): copy entity/project/id from the "
            "run's address (the id is its last part, not the shown name)"
        )
    return (
        f"wandb at {host} gave no answer about run {name} ({message}). No network here? The same command on a "
        "machine that has one keeps the run in .wandb-cache: copy that folder to here"
    )


def _status(error: BaseException | None) -> int | None:
    """The HTTP status of an error, or of what caused it."""
    while error is not None:
        response = getattr(error, "response", None)
        if status := getattr(response, "http_status", None) or getattr(response, "status_code", None):
            return int(status)
        error = error.__cause__ or error.__context__
    return None


@shown_output()
def main(name: str, folder: str) -> int:
    """The process of a download, which reports an error to its parent on stdout."""
    try:
        fetch(name, Path(folder))
    except UserError as error:
        print(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
