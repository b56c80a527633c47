"""Tells built-in sources, paths and hub ids apart, and says in words why the hub cannot give it."""

from __future__ import annotations

from typing import Literal

from common.errors import UserError
from node.exit_codes import causes, no_space_left, one_line

DATA_SUFFIXES = (".jsonl", ".json", ".parquet")
# By name, since these classes live in huggingface_hub, datasets, httpx and requests, and move between versions.
_UNREACHABLE = {
    "OfflineModeIsEnabled",
    "LocalEntryNotFoundError",
    "ConnectionError",
    "ConnectError",
    "ConnectTimeout",
    "ReadTimeout",
    "ProxyError",
    "MaxRetryError",
    "gaierror",
}
_ABSENT = {"RepositoryNotFoundError", "DatasetNotFoundError", "RevisionNotFoundError", "GatedRepoError"}


def source_kind(source: str) -> Literal["builtin", "local", "hub"]:
    """Where a source lies: with us, on this machine (a data file, or a path that is written as one), or on a hub.

    Not by what is there: a folder of a hub id's name would take its place, and the pinned revision would mean nothing.
    """
    if source.startswith("builtin:"):
        return "builtin"
    if source.startswith(("/", ".", "~")) or source.endswith(DATA_SUFFIXES) or source.count("/") > 1:
        return "local"
    return "hub"


def hub_error(kind: str, source: str, revision: str, error: BaseException) -> UserError:
    """What to tell a user whose hub id could not be had; `kind` is `data` or `model`."""
    names = {base.__name__ for link in causes(error) for base in type(link).__mro__}
    if no_space_left(error):
        return UserError(f"no space left while downloading {source!r}; set HF_HOME to a folder on a larger disk")
    if names & _ABSENT and not names & {"OfflineModeIsEnabled"}:
        return UserError(
            f"workload.{kind}.source {source!r} at revision {revision!r} was not found on the hub, or is not open to "
            f"you; check the id and the commit, or log in with `hf auth login` where it is gated"
        )
    if names & _UNREACHABLE:
        return UserError(
            f"workload.{kind}.source {source!r} at revision {revision!r} is not in the local cache and the hub cannot "
            f"be reached from here; on a machine with network download it (`hf download {source} --revision "
            f"{revision}{' --repo-type dataset' if kind == 'data' else ''}`), then point HF_HOME at that cache and set "
            f"HF_HUB_OFFLINE=1, or give workload.{kind}.source as a local path"
        )
    return UserError(f"workload.{kind}.source {source!r} could not be loaded: {one_line(error)}")
