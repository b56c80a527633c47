"""Reads Hydra's overrides from the command lines that a log shows (`set -x`, Ray's job runner, an echoed script)."""

from __future__ import annotations

import re
import shlex

from common.dotted import overrides_by_key

# What the overrides are read for: the engine and the loop.
_READ_FOR = ("actor_rollout_ref.rollout.name", "trainer.use_v1", "trainer.v1.trainer_mode")
# key=value, with Hydra's + or ++ for a key that the configuration lacks; the key of a section's setting has dots.
_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=")
# What stands before a command: a task's number (srun --label), then the shell's mark or Ray's job runner.
_TASK = r"\s*(?:\[\w+\]: |\d+: )?"
_MARK = re.compile(_TASK + r"(?:\++ |\S*\$ |Running entrypoint for job \S+: )")
_VARIABLE, _PATH = r"(?:[A-Za-z_]\w*=\S*\s+)*", r"[\"']?(?:[^\s\"']*/)?"
_PROGRAM = re.compile(_VARIABLE + _PATH + r"(?:python[\d.]*|torchrun|accelerate)[\"']?(?=\s)")
# Behind a mark, what starts the program may stand before it with options of its own.
_STARTER = re.compile(
    _VARIABLE + _PATH + r"(?:srun|ray|env|exec|nohup|time|timeout|apptainer|singularity|uv|numactl)\s"
)
# verl's own programs and its sections; a script that prepares data takes overrides too.
_VERL = re.compile(r"\bverl\.|\bmain_ppo|(?:^|[\s'\"+])(?:actor_rollout_ref|trainer)\.\w")


class CommandLine:
    """The overrides of verl's last command that was fed, by key; of equal keys the last counts, as in Hydra."""

    def __init__(self) -> None:
        self._commands: list[dict[str, str]] = []
        self._given: dict[str, str] | None = None
        """The overrides of the command whose lines may go on; None for none."""
        self._is_verl = self._unfinished = False

    @property
    def overrides(self) -> dict[str, str]:
        """None of them where two commands differ in the engine or the loop: a printed script may have run either."""
        told = {tuple(map(given.get, _READ_FOR)) for given in self._commands}
        return self._commands[-1] if len(told) == 1 else {}

    def feed(self, text: str) -> None:
        """Take a line of a log, which may be none of a command, or one of several."""
        begins = _begins(text)
        if begins is not None:
            self._given, self._is_verl, self._unfinished, text = {}, False, True, text[begins:]
        if self._given is None:
            return
        try:
            words = shlex.split(text)
        except ValueError:
            words = [word.strip("'\"") for word in text.split()]
        given = [word for word in words if _OVERRIDE.match(word)]
        if not self._unfinished and len(given) < max(1, sum(word not in ("\\", "") for word in words)):
            self._given = None
            return
        self._unfinished = text.rstrip().endswith("\\")
        self._given |= overrides_by_key({"overrides": given})
        if not self._is_verl and _VERL.search(text):
            self._is_verl = True
            self._commands.append(self._given)


def _begins(text: str) -> int | None:
    """Where the program's arguments begin in a line that starts with a command; None in any other."""
    mark = _MARK.match(text)
    at = mark.end() if mark else len(text) - len(text.lstrip())
    found = _PROGRAM.match(text, at)
    if found is None and mark and _STARTER.match(text, at):
        found = re.compile(r"\s" + _PROGRAM.pattern).search(text, at)
    return found.end() if found else None
