"""Gives each run of `rolloutbench ab` its own folder of checkpoints, and says where runs share one.

verl resumes unasked from what it finds in a folder that has the names of project and experiment: one arm would train on
with the weights of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from common.errors import UserError
from trainers.launching import Checkpoints
from workflow.launch_scripts.script import ShellCommand, trainings
from workflow.launch_scripts.words import OWN_VALUE, changes_of

_KEPT_FILES = re.compile(
    r"[+-]*([\w.]*\.)?(default_local_dir|output_dir|save_path|ckpt_path|checkpoint_dir|save_dir|save)"
)
_HARM = "a run may resume from another's checkpoint"


def own_checkpoints(
    text: str, command: ShellCommand | None, words: Sequence[str], arguments: Sequence[str], name: str, *, anew: bool
) -> list[str]:
    """The words by which each run has a folder of its own; none that the user's words or the trainer have already.

    `name` is the experiment's; with `anew` a run does not resume from its own checkpoint either.
    """
    if command is None or (trainer := next((one for one, _ in trainings(command)), None)) is None:
        return []
    assert trainer.launch is not None
    kept: Checkpoints = trainer.launch.checkpoints
    found = []
    if _value(kept.folder, words) is None:
        if _value(kept.folder, [word.text for word in command.words]) is not None:
            found.append(f"{kept.folder.lstrip('-')}={OWN_VALUE}/{{run}}")
        elif kept.is_shared:
            found.append(f"{kept.folder}=checkpoints/{name}/{{run}}")
    if anew and kept.resume and _value(kept.resume, words) is None:
        script_has = _value(kept.resume, [word.text for word in command.words])
        found += [f"{kept.resume}={kept.never}"] * (script_has in (None, kept.unasked))
    return [word for word in found if _has_place(text, [*words, word], arguments)]


def shared_checkpoints(command: ShellCommand, words: Sequence[str]) -> Iterator[str]:
    """A doubt for each folder that all runs have, and for a command that may have one."""
    given = [(f"line {word.line}: {word.text[:60]}", word.text) for word in command.words]
    named = [(where, word) for where, word in given if _names_folder(word)]
    in_script = {_plain(word) for _, word in named}
    named += [(word[:60], word) for word in words if _names_folder(word) and _plain(word) not in in_script]
    for where, word in dict(named).items():
        values = [own.partition("=")[2] for own in words if _plain(own) == _plain(word)]
        if not any("{run}" in value or ("{arm}" in value and "{seed}" in value) for value in values):
            do = f"--set '{_plain(word)}={OWN_VALUE}/{{run}}' gives each its own"
            yield f"{where} is one folder for all runs: {_HARM}; {do}"
    if not named and not any(trainings(command)):
        do = "if it has one, give each run its own: --set 'NAME=FOLDER/{run}'"
        yield f"line {command.line}: the command names no folder of checkpoints. If runs share one, {_HARM}; {do}"


def _names_folder(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(_KEPT_FILES.fullmatch(name) and (equals or name.startswith("-")))


def _plain(word: str) -> str:
    return word.partition("=")[0].lstrip("+-")


def _value(option: str, words: Sequence[str]) -> str | None:
    """What the last word that gives an option says; empty where its value is the next word, None without one."""
    return next((word.partition("=")[2] for word in reversed(words) if _plain(word) == _plain(option)), None)


def _has_place(text: str, words: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether the script's copy can have these words."""
    try:
        changes_of(text, words, arguments)
    except UserError:
        return False
    return True
