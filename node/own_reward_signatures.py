"""Recognises a user's reward function by its parameters: this project's signature, verl's, TRL's or ms-swift's.

Imports only the standard library: own_reward_process.py, which is started by its path, imports it from its folder.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

ARGUMENTS = ("completions", "prompts", "rows", "token_ids", "cut_off")
"""What the process is given, each a list with one entry per response. Functions of this project's own signature have
parameters of these names; the other signatures' arguments are made from them."""
ANSWERS = ("solution", "answer", "ground_truth")
"""Parameters by which functions written for TRL or ms-swift ask for the ground truth."""


class Problem(Exception):
    """An error in the user's file, as a message; `parameters` are those for which there is no value."""

    def __init__(self, message: str, parameters: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.parameters = list(parameters)


class _NoState:
    """Stands for the trainer's state: equal completions have equal rewards, whatever the trainer and the step."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trainer_state has no {name}: rewards do not depend on the trainer's state (docs/rewards.md)"
        )


Given = Mapping[str, Sequence[Any]]
Argument = tuple[tuple[str, ...], Callable[[Given], Any]]
"""Which of `ARGUMENTS` an argument is made from, and how."""


def _as_given(name: str) -> Argument:
    return (name,), lambda given: given[name]


def _of_rows(name: str, column: str) -> dict[str, Argument]:
    return {name: (("rows",), lambda given: [row.get(column) for row in given["rows"]])}


def _fixed(value: Any) -> Argument:
    return (), lambda given: value


def _replies(given: Given) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in given["completions"]]


def _messages(given: Given) -> list[list[dict[str, str]]]:
    return [[*(prompt or ()), *reply] for prompt, reply in zip(given["prompts"], _replies(given), strict=True)]


def _extra_info(given: Given) -> dict[str, Any]:
    """verl's: the row without what has its own argument; a column of verl's data of that name is part of it."""
    row = {name: value for name, value in given["rows"][0].items() if name not in ("ground_truth", "data_source")}
    own = row.pop("extra_info", None)
    return {**row, **(own if isinstance(own, Mapping) else {})}


@dataclass(frozen=True)
class Signature:
    """How the reward functions of one kind are called."""

    arguments: Mapping[str, Argument]
    """By name; a function gets those that it has a parameter for."""
    completions: str = "texts"
    """What a completion is, in words."""
    columns: bool = True
    """Whether the data's columns are arguments, too."""
    one_by_one: bool = False
    """A call is for one response, and returns its value or a dict with `score`."""
    positional: bool = False
    """`completions` are the first argument, whatever its name."""

    def given(self, columns: Sequence[str]) -> dict[str, Argument]:
        """All arguments; a column has the precedence that it has in the function's own trainer."""
        of_columns = {key: one for name in columns for key, one in _of_rows(name, name).items()}
        return {**self.arguments, **(of_columns if self.columns else {})}


TRUTHS = {key: one for name in ANSWERS for key, one in _of_rows(name, "ground_truth").items()}
OWN = "rolloutbench"
SIGNATURES = {
    OWN: Signature({name: _as_given(name) for name in ARGUMENTS}),
    # verl 0.9.1 experimental/reward_loop/reward_manager/naive.py, 0.4.1 workers/reward_manager/naive.py.
    "verl": Signature(
        {
            "data_source": (("rows",), lambda given: given["rows"][0].get("data_source")),
            "solution_str": (("completions",), lambda given: given["completions"][0]),
            "ground_truth": (("rows",), lambda given: given["rows"][0].get("ground_truth")),
            "extra_info": (("rows",), _extra_info),
        },
        completions="one text",
        columns=False,
        one_by_one=True,
    ),
    # TRL 1.16.0 trainer/grpo_trainer.py _calculate_rewards.
    "trl": Signature(
        {
            "prompts": _as_given("prompts"),
            "completions": (("completions",), _replies),
            "completion_ids": _as_given("token_ids"),
            "trainer_state": _fixed(_NoState()),
            "log_extra": _fixed(lambda column, values: None),
            "log_metric": _fixed(lambda name, value: None),
            **TRUTHS,
        },
        completions="conversations",
    ),
    # ms-swift 4.6.0 rl_core/grpo_algorithm.py compute_rewards_per_func, data.py to_reward_row.
    "swift": Signature(
        {
            "completions": _as_given("completions"),
            "messages": (("prompts", "completions"), _messages),
            "response_token_ids": _as_given("token_ids"),
            "is_truncated": _as_given("cut_off"),
            "finish_reason": (("cut_off",), lambda given: ["length" if cut else "stop" for cut in given["cut_off"]]),
            "trainer_state": _fixed(_NoState()),
            **TRUTHS,
        },
        positional=True,
    ),
}
OF_CLASSES = "swift"


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function that may be given by name."""

    names: list[str]
    required: set[str]
    takes_all: bool

    @classmethod
    def of(cls, function: Callable[..., Any], where: str) -> Parameters:
        try:
            found = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise Problem(f"{where} has no parameters that Python can read; write a function around it") from None
        names = [p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        required = {p.name for p in found if p.default is p.empty and p.name in names}
        return cls(names, required, any(p.kind is p.VAR_KEYWORD for p in found))

    def positional(self) -> Parameters:
        """The same with the first one as the completions, whatever its name."""
        first = self.names[:1]
        return replace(self, names=["completions", *self.names[1:]], required=self.required - {*first})

    def missing(self, signature: Signature, options: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
        """Required parameters for which a signature has no argument."""
        given = {*signature.given(columns), *options}
        return [name for name in self.names if name in self.required and name not in given]

    def fits(self, signature: Signature, options: Mapping[str, Any], columns: Sequence[str]) -> bool:
        takes = self.takes_all or bool({*self.names} & {*signature.given(columns)})
        return takes and not self.missing(signature, options, columns)


def fitting_signatures(
    parameters: Parameters, options: Mapping[str, Any], columns: Sequence[str]
) -> tuple[str, list[str]]:
    """The signature by which a function is called, and the others that it fits.

    This project's own is first: what fitted it before there were others keeps its meaning. A function that fits none
    has the one with most of its parameters, whose message is about it.
    """
    fitting = [name for name, one in SIGNATURES.items() if parameters.fits(one, options, columns)]
    if not fitting:
        most = max(SIGNATURES.values(), key=lambda one: len({*parameters.names} & {*one.arguments}))
        fitting = [name for name, one in SIGNATURES.items() if one is most]
    return fitting[0], fitting[1:]


def accepted_arguments(
    parameters: Parameters, signature: Signature, options: Mapping[str, Any], columns: Sequence[str], where: str
) -> dict[str, Argument]:
    """The arguments that a function gets; `Problem` if it cannot be called with them."""
    given = signature.given(columns)
    names = ", ".join(parameters.names)
    for option in options:
        # verl's reward_kwargs replace its own arguments (0.9.1 trainer/ppo/reward.py _call_with_kwargs).
        if option in given and (signature.one_by_one or (option in TRUTHS and option not in columns)):
            del given[option]
        elif option in given:
            what = "a column of the data" if option in columns else "an argument of every function"
            raise Problem(f"{where}: option {option!r} has the name of {what}; rename it")
        if option not in parameters.names and not parameters.takes_all:
            raise Problem(f"{where} has no parameter for option {option!r}; its parameters: {names}")
    if missing := parameters.missing(signature, options, columns):
        raise Problem(
            f"{where} has a parameter {missing[0]!r} that is no option; functions are given {', '.join(given)}"
            + (" and the columns that workload.data.columns names" if signature.columns else ""),
            missing,
        )
    return {name: one for name, one in given.items() if parameters.takes_all or name in parameters.names}


class Options:
    """Stands for the trainer's arguments, which ms-swift gives to a class of rewards: it has the reward's options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        vars(self).update(options)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"args has no {name}: give it as one of the reward's options")


BASES = ("ORM", "AsyncORM")


class _Base:
    def __init__(self, args: Any = None, **kwargs: Any) -> None:
        self.args = args


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of ms-swift that rewards import, where no other finder has them, and remembers what is missing.

    Releases 3 have `swift.plugin`, releases 4 `swift.rewards`; other trainers' stacks have neither.
    """

    _modules = ("swift", "swift.plugin", "swift.plugin.orm", "swift.rewards", "swift.rewards.orm", "swift.utils")

    def __init__(self) -> None:
        self.missed: list[str] = []
        self._content: dict[str, Any] = {name: type(name, (_Base,), {}) for name in BASES}
        self._content |= {"orms": {}, "get_logger": lambda *args, **kwargs: logging.getLogger("swift")}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """A module's description; None for what this is no stand-in for."""
        if name in self._modules:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        self.missed.append(name)
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module."""

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise ModuleNotFoundError(f"No module named {module.__name__ + '.' + name!r}", name=f"swift.{name}")

        vars(module).update(self._content, __getattr__=missing)
