"""Lists the releases of verl that are driven from here, one file each. Also loaded in the stacks."""

from trainers.verl.releases.release import Release
from trainers.verl.releases.v0_4_1 import V0_4_1
from trainers.verl.releases.v0_9_1 import V0_9_1

__all__ = ["Release", "release_named", "releases"]

_RELEASES: dict[str, Release] = {one.version: one for one in (V0_4_1, V0_9_1)}


def releases() -> tuple[Release, ...]:
    """All releases that are driven from here, in order."""
    return tuple(_RELEASES.values())


def release_named(version: str) -> Release:
    """The release of that version; an unknown one has all defaults."""
    return _RELEASES.get(version) or Release(version)
