"""A user's training script, run as it is: started, watched and stopped like a trainer, and read from its log."""

from collections.abc import Mapping
from typing import Any

from common.dotted import as_mapping


def as_logged(spec: Mapping[str, Any], imported: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a script's run as its imported.json reads it: the log's trainer and engine, and an import of it."""
    read_as = {key: value for key, value in as_mapping(imported.get("read_as")).items() if key != "doubts"}
    return {**spec, **read_as, "trainer_args": {}}
