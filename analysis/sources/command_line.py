"""Reads Hydra's overrides from the command lines that a log shows (`set -x`, Ray's job runner, an echoed script)."""

from __future__ import annotations

import re
import shlex

from analysis.settings import overrides_by_key

# key=value, with Hydra's + or ++ for a key that the configuration lacks; the key of a section's setting has dots.
_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=")
_PROGRAM = re.compile(r"(?:^|[\s/'\"])(?:python[\d.]*|torchrun|accelerate)\s")


class CommandLine:
    """The overrides of the last command that was fed, by key; of equal keys the last counts, as in Hydra."""

    def __init__(self) -> None:
        self.overrides: dict[str, str] = {}

    def feed(self, text: str) -> None:
        """Take a line of a log, which may be none of a command, or one of several."""
        if "=" not in text and "python" not in text:
            return
        program = _PROGRAM.search(text)
        if program is None and _OVERRIDE.match(text.lstrip().lstrip("'\"")) is None:
            return
        try:
            words = shlex.split(text)
        except ValueError:
            words = [word.strip("'\"") for word in text.split()]
        given = [word for word in words if _OVERRIDE.match(word)]
        if program is not None and given:
            self.overrides = {}
        elif len(given) < sum(word not in ("\\", "") for word in words):
            return
        self.overrides |= overrides_by_key({"overrides": given})
