"""Reads what a verl log has besides its steps: versions, restarts, experiments, the configuration and the command.

main_ppo.py pretty-prints the configuration; `set -x`, Ray's job runner or a script shows the command with Hydra's
overrides. Both may stand between lines of other programs.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from common.dotted import overrides_by_key
from trainers.logs.log_files import Printout
from trainers.logs.printed_config import PrintedConfigs

# The overrides that identify the engine and the loop.
_IDENTIFYING = ("actor_rollout_ref.rollout.name", "trainer.use_v1", "trainer.v1.trainer_mode")
# key=value with a dotted key; + or ++ before a key that the configuration lacks.
_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=")
# A command at a line's start, as a script or srun --label prints it; behind the mark of a shell (`set -x`) or of Ray's
# job runner, launchers and their options may come before it. Prose that only names a program has no such start.
_COMMAND = re.compile(
    r"\s*(?:\[\w+\]: |\d+: )?"
    r"(?:(?:\++ |\S*\$ |Running entrypoint for job \S+: )(?:.*?\s)?|(?:[A-Za-z_]\w*=\S*\s+)*)"
    r"[\"']?(?:[^\s\"']*/)?(?:python[\d.]*|torchrun|accelerate)[\"']?\s"
)
# verl's own programs, or its sections in a program of one's own; a script that prepares data also has overrides.
_VERL = re.compile(r"\bverl\.|\bmain_(?:ppo|dapo)\b|(?:^|[\s'\"+])(?:actor_rollout_ref|trainer)\.\w")


class CommandLine:
    """The overrides of the last verl command in a log, by key; of equal keys the last counts, as in Hydra."""

    def __init__(self) -> None:
        self._commands: list[dict[str, str]] = []
        self._given: dict[str, str] = {}
        """Of the last command, which may be another program's."""
        self._continues = False

    @property
    def overrides(self) -> dict[str, str]:
        """Empty if two commands differ in the engine or the loop: a printed script may have run either."""
        identities = {tuple(map(given.get, _IDENTIFYING)) for given in self._commands}
        return self._commands[-1] if len(identities) == 1 else {}

    def feed(self, text: str) -> None:
        """Take the next line of a log; a command continues behind a backslash."""
        if _COMMAND.match(text):
            self._given = {}
        elif not self._continues:
            return
        try:
            words = shlex.split(text)
        except ValueError:
            words = [word.strip("'\"") for word in text.split()]
        self._continues = text.rstrip().endswith("\\")
        self._given |= overrides_by_key({"overrides": [word for word in words if _OVERRIDE.match(word)]})
        if _VERL.search(text) and not (self._commands and self._commands[-1] is self._given):
            self._commands.append(self._given)


# verl prints it when it resumes from a checkpoint (ray_trainer.py, _load_checkpoint).
_RESUMES = re.compile(r"Setting global step to (\d{1,18})\b")
_EXPERIMENT = re.compile(r"'experiment_name': '([^']*)'")
# As pip, a file of its and verl's own banner write it: a project or a folder named verl-0.4.1 says nothing.
_V = r"v?(\d+\.\d+(?:\.\w+)*)"
_VERSION = re.compile(
    rf"(?<![\w.-])verl(?:==| version:? ?|, version ){_V}|(?<![\w.-])verl-{_V}(?=\.dist-info|-py\d|\.tar\.gz)"
)
_INSTALLED = re.compile(rf"(?:Successfully installed|Would install)\b.* verl-{_V}(?:\s|$)")


@dataclass
class LogFacts:
    """What a log has besides its steps."""

    resumes: set[int] = field(default_factory=set)
    experiments: dict[str, int] = field(default_factory=dict)
    """Experiment name -> the line where its run's output begins, as far as known."""
    actors: dict[str, int] = field(default_factory=dict)
    """Ray actor -> its first line."""
    dictionaries: dict[str, int] = field(default_factory=dict)
    """Ray actor -> the line where its last printed dictionary begins."""
    runners: list[str] = field(default_factory=list)
    """The actors that printed steps, in order."""
    versions: set[str] = field(default_factory=set)
    command: CommandLine = field(default_factory=CommandLine)
    """The start command, if the lines before the first step show it."""
    configs: PrintedConfigs = field(default_factory=lambda: PrintedConfigs("verl", ("actor_rollout_ref", "trainer")))

    def note(self, part: Printout) -> None:
        """Take up a line that is not a step."""
        text = part.text
        self.actors.setdefault(part.actor, part.line)
        if text.startswith("{'"):
            self.dictionaries[part.actor] = part.line
        if "Setting global step" in text and (resumes := _RESUMES.search(text)) is not None:
            self.resumes.add(int(resumes[1]))
        if "experiment_name" in text and (named := _EXPERIMENT.search(text)) is not None:
            # The name is near the end of the configuration, which must not be split.
            begins = self.dictionaries.get(part.actor, part.line)
            if part.actor and self.actors[part.actor] > max(self.experiments.values(), default=0):
                begins = self.actors[part.actor]
            self.experiments.setdefault(named[1], begins)
        self.note_version(text)
        self.configs.feed(part)

    def note_version(self, text: str) -> None:
        """Take up verl's version if a line names it."""
        if "verl" in text and (version := _VERSION.search(text) or _INSTALLED.search(text)) is not None:
            self.versions.add(next(filter(None, version.groups())))
