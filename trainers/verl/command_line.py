"""Reads Hydra's overrides from the command lines that a log shows (`set -x`, Ray's job runner, an echoed script)."""

from __future__ import annotations

import re
import shlex

from common.dotted import overrides_by_key

# The overrides that identify the engine and the loop.
_IDENTIFYING = ("actor_rollout_ref.rollout.name", "trainer.use_v1", "trainer.v1.trainer_mode")
# key=value with a dotted key; + or ++ before a key that the configuration lacks.
_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=")
# Text before a command: a task's number (srun --label), then the shell's mark or Ray's job runner.
_TASK = r"\s*(?:\[\w+\]: |\d+: )?"
_MARK = re.compile(_TASK + r"(?:\++ |\S*\$ |Running entrypoint for job \S+: )")
_VARIABLE, _PATH = r"(?:[A-Za-z_]\w*=\S*\s+)*", r"[\"']?(?:[^\s\"']*/)?"
_PROGRAM = re.compile(_VARIABLE + _PATH + r"(?:python[\d.]*|torchrun|accelerate)[\"']?(?=\s)")
# After a mark, a launcher with its own options may come before the program.
_STARTER = re.compile(
    _VARIABLE + _PATH + r"(?:srun|ray|env|exec|nohup|time|timeout|apptainer|singularity|uv|numactl)\s"
)
# verl's own programs and sections; a script that prepares data also has overrides.
_VERL = re.compile(r"\bverl\.|\bmain_ppo|(?:^|[\s'\"+])(?:actor_rollout_ref|trainer)\.\w")


class CommandLine:
    """The overrides of the last verl command in a log, by key; of equal keys the last counts, as in Hydra."""

    def __init__(self) -> None:
        self._commands: list[dict[str, str]] = []
        self._given: dict[str, str] | None = None
        """The overrides of the command that may continue on the next line."""
        self._is_verl = self._unfinished = False

    @property
    def overrides(self) -> dict[str, str]:
        """Empty if two commands differ in the engine or the loop: a printed script may have run either."""
        identities = {tuple(map(given.get, _IDENTIFYING)) for given in self._commands}
        return self._commands[-1] if len(identities) == 1 else {}

    def feed(self, text: str) -> None:
        """Take the next line of a log."""
        begins = _begins(text)
        if begins is not None:
            self._given, self._is_verl, self._unfinished, text = {}, False, True, text[begins:]
        if self._given is None:
            return
        try:
            arguments = shlex.split(text)
        except ValueError:
            arguments = [argument.strip("'\"") for argument in text.split()]
        given = [argument for argument in arguments if _OVERRIDE.match(argument)]
        if not self._unfinished and len(given) < max(1, sum(argument not in ("\\", "") for argument in arguments)):
            self._given = None
            return
        self._unfinished = text.rstrip().endswith("\\")
        self._given |= overrides_by_key({"overrides": given})
        if not self._is_verl and _VERL.search(text):
            self._is_verl = True
            self._commands.append(self._given)


def _begins(text: str) -> int | None:
    """Where the program's arguments begin in a line that starts with a command; None in other lines."""
    mark = _MARK.match(text)
    at = mark.end() if mark else len(text) - len(text.lstrip())
    found = _PROGRAM.match(text, at)
    if found is None and mark and _STARTER.match(text, at):
        found = re.compile(r"\s" + _PROGRAM.pattern).search(text, at)
    return found.end() if found else None
