"""Six secrets that stand wherever a user has some; whatever a test prints or writes is searched for them.

tests/conftest.py puts the first two into the environment of all tests, and looks for all after each. A test that finds
one in what it wrote by itself plants it in a file with the line `INPUT`: such a file was given, not written.
"""

import functools
import os
import stat
from pathlib import Path

import pyarrow.parquet as pq

MARK = "Zx7Planted"
VARIABLE, ADDRESS, SCRIPT, INDEX = (f"{MARK}{kind}" for kind in ("Env", "Url", "Sh", "Pip"))
"""Beside these wandb's config and a log have one: tests/answers/wandb_folder, tests/answers/verl_console."""
ENVIRONMENT = {
    "JUDGE_API_KEY": VARIABLE,
    "JUDGE_URL": f"https://me:{ADDRESS}@judge.invalid/v1?api_key={ADDRESS}",
    # As people have them with engines and trainers, whose variables done.json shows.
    "VLLM_API_KEY": VARIABLE,
    "TORCH_DSN": f"https://{ADDRESS}@sentry.invalid/1",
}
INDEX_USER = f"me:{INDEX}@"
"""Stands before the host in the address of a package index."""
SCRIPT_LINE = f"export HF_TOKEN={SCRIPT} # of a launch script\n"
INPUT = "test data with a planted secret"
"""A line of each file in which a test planted one."""
USERS_OWN = ("project",)
"""Folders in which a user's own programs write what they like."""
MOST_BYTES = 4_000_000
"""Larger files are weights, and logs that a test makes long."""


PRINTED: list[str] = []
"""What has a planted secret of what the programs of the running test have printed."""


def in_text(text):
    """The part of a text around a planted secret; empty without one."""
    content = text if isinstance(text, bytes) else str(text).encode(errors="replace")
    at = content.find(MARK.encode())
    return "" if at < 0 else content[max(0, at - 120) : at + 60].decode(errors="replace")


def searched(communicate):
    """A function that returns a program's streams, and notes planted secrets in them."""

    @functools.wraps(communicate)
    def streams_of(*args, **options):
        streams = communicate(*args, **options)
        PRINTED.extend(filter(None, (in_text(stream) for stream in streams if stream)))
        return streams

    return streams_of


def in_files(folder):
    """The files below a folder that others may read and that have a planted secret, with what is around it."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in USERS_OWN and not (Path(parent) / name).is_symlink()]
        for path in (Path(parent) / name for name in names):
            if around := _in_file(path):
                yield path, around


def _in_file(path):
    try:
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES or not about.st_mode & 0o044:
            return ""
        content = path.read_bytes()
        if path.suffix == ".parquet":
            # A secret is text: a file of a few kilobytes may have millions of numbers.
            texts = [field.name for field in pq.read_schema(path) if "string" in str(field.type)]
            content += pq.read_table(path, columns=texts).to_pandas().to_csv().encode() if texts else b""
    except (OSError, ValueError):  # it vanished, or is no table
        return ""
    return "" if INPUT.encode() in content else in_text(content)
