"""Tells a hub id from a path, and says in words why the hub cannot give it."""

from __future__ import annotations

from common.errors import UserError
from node.exit_codes import causes, no_space_left, one_line

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


def looks_local(source: str) -> bool:
    """Whether a source that is not built in names a file or folder, by how it is written alone.

    Not by what is there: a folder of a hub id's name would take its place, and the pinned revision would mean nothing.
    """
    # Must agree with source_kind of trainers/workload.py, which a stack's Python cannot import; a test compares them.
    suffixes = (".jsonl", ".json", ".parquet")
    return source.startswith(("/", ".", "~")) or source.endswith(suffixes) or source.count("/") > 1


def check_revision(kind: str, source: str, revision: str | None) -> str:
    """The revision of a hub id, which must be pinned: otherwise the data under a result could change."""
    if not revision:
        raise UserError(
            f"workload.{kind}.source is the hub id {source!r} without a revision; set workload.{kind}.revision to a "
            f"commit (the hub page's 'History' lists them), or give a local path"
        )
    return revision


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
