"""What a trainer's own launch command says, as an experiment: workload, options, and what has no place in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

STEPS = 20
"""What an experiment trains whose script counts epochs."""


class Argument(Protocol):
    """A word of the command: a launch script's, with its place."""

    @property
    def text(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def unknown(self) -> tuple[str, ...]: ...


class Left(NamedTuple):
    """Something of a script that the experiment does not have, or has otherwise."""

    line: int
    """Of the script; 0 for what the script does not say."""
    what: str
    why: str
    do: str = ""
    """What to do; empty for nothing."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a launch script says beside the trainer's own arguments."""

    processes: int = 0
    """Training processes of all nodes, by the program before the trainer (torchrun, accelerate); 0: not said."""
    nodes: int = 0
    gpus_per_node: int = 0
    """As requested from the scheduler, or visible; 0: not said."""
    commands: Sequence[Sequence[Argument]] = ()
    """All commands of the script: a server may be started beside the trainer."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the script writes, by path."""
    read_file: Callable[[str], str | None] = lambda path: None
    """The text of a file beside the script."""


@dataclass(slots=True)
class Launched:
    """A launch command as an experiment."""

    engine: str
    release: str = ""
    """The release whose settings it has, if that can be seen."""
    workload: dict[str, Any] = field(default_factory=dict)
    """The workload's words, as in a configuration; also `model`, `data` and `rewards`."""
    options: dict[str, Any] = field(default_factory=dict)
    """The trainer's own settings, the same for every engine."""
    engine_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of one engine only."""
    owners: dict[str, str] = field(default_factory=dict)
    """The trainer's setting -> the workload's word that decides it; also `seeds` and `engine`."""
    seed: int = 0
    left: list[Left] = field(default_factory=list)
    to_write: dict[str, str] = field(default_factory=dict)
    """The workload's words that the script leaves to its caller -> what is to be done about each."""


class Checkpoints(NamedTuple):
    """How a trainer's own command says where its checkpoints are, so that runs of one script do not share them."""

    folder: str
    """The option that names their folder."""
    is_shared: bool
    """Whether runs whose command does not name it have the same folder."""
    resume: str = ""
    """The option by which a run resumes from what it finds there, if the trainer does so unasked."""
    never: str = ""
    """Its value for a run that begins anew."""
    unasked: str = ""
    """Its value by default."""


@dataclass(frozen=True)
class Launch:
    """How people start a trainer themselves."""

    arguments: Callable[[Sequence[str]], int | None]
    """The place of the trainer's first argument in a command's words; None in another program's command."""
    read: Callable[[Sequence[Argument], Surroundings], Launched]
    """The experiment; a `UserError` for a command that trains no GRPO."""
    settings: Callable[[Sequence[Argument], Surroundings, str], Mapping[str, Any]]
    """The settings of the command's arguments under a release, as the trainer has them: to compare with a run's."""
    checkpoints: Checkpoints
    not_compared: Callable[[str], bool] = lambda key: False
    """Whether a setting is a name or a place, which each run's own job sets, or only the workload has it otherwise."""


def as_count(value: Any, default: int = 0) -> int:
    """A whole number from a setting; the default for null, a boolean, or other text."""
    try:
        return default if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        return default


_SAME = ("num_generations", "max_prompt_length", "max_response_length", "temperature", "top_p", "learning_rate")


def words_of(keys: Mapping[str, Sequence[str]], values: Mapping[str, Any]) -> dict[str, Any]:
    """The workload's words that a trainer has in the same number, by its `keys`."""
    found = {word: next((values[key] for key in keys[word] if values.get(key) is not None), None) for word in _SAME}
    return {word: value for word, value in found.items() if value is not None}
