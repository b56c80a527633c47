"""Classifies sources as built-in, local or hub, and explains hub errors."""

from __future__ import annotations

from typing import Literal

from common.errors import UserError
from node.exit_codes import causes, no_space_left, one_line

DATA_SUFFIXES = (".jsonl", ".json", ".parquet")
# By name, because these classes are in huggingface_hub, datasets, httpx and requests, and move between versions.
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
    """The kind of a source by its spelling: built-in, a data file or path, or a hub id.

    Existing folders are not considered: one with the name of a hub id would hide the pinned revision.
    """
    if source.startswith("builtin:"):
        return "builtin"
    if source.startswith(("/", ".", "~")) or source.endswith(DATA_SUFFIXES) or source.count("/") > 1:
        return "local"
    return "hub"


def commit_command(source: str, is_data: bool) -> str:
    """The command that prints the newest commit of a hub's id, its first word."""
    return f"git ls-remote https://huggingface.co/{'datasets/' * is_data}{source} HEAD"


def hub_error(kind: str, source: str, revision: str, error: BaseException) -> UserError:
    """The error for a hub id that could not be loaded; `kind` is `data` or `model`."""
    names = {base.__name__ for link in causes(error) for base in type(link).__mro__}
    if no_space_left(error):
        return UserError(f"no space left while downloading {source!r}; set HF_HOME to a folder on a larger disk")
    if names & _ABSENT and not names & {"OfflineModeIsEnabled"}:
        return UserError(
            f"workload.{kind}.source {source!r} at revision {revision!r} was not found on the hub, or you have no "
            f"access; check the id and the commit, or log in with `hf auth login` if it is gated"
        )
    if names & _UNREACHABLE:
        return UserError(
            f"workload.{kind}.source {source!r} at revision {revision!r} is not in the local cache and the hub cannot "
            f"be reached from here; on a machine with network download it (`hf download {source} --revision "
            f"{revision}{' --repo-type dataset' if kind == 'data' else ''}`), then point HF_HOME at that cache and set "
            f"HF_HUB_OFFLINE=1, or give workload.{kind}.source as a local path"
        )
    return UserError(f"workload.{kind}.source {source!r} could not be loaded: {one_line(error)}")
