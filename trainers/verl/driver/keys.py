"""Tells whether verl has a setting, and whether a value is of its kind, by the settings of verl's own configuration.

Only the standard library: the job asks it of what Hydra composed in the stack, and the controller of the tables in
`trainers/verl/packaged/`, so that a slip is told before a stack is built. verl 0.9.1 makes dataclasses of parts of its
configuration (those with `_target_`), when the workers start: a setting that Hydra was told to add and the dataclass
lacks ends the run there. Their fields are read from the source, since importing it would import torch.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from common.messages import did_you_mean

# Where verl takes a value of another kind than its default's.
_ALSO: Mapping[str, tuple[type, ...]] = {
    "target_modules": (list,),
    "train_files": (list,),
    "val_files": (list,),
    "logger": (str,),
    "reshard_after_forward": (int,),
    "rollout_is_threshold": (str,),
    "rollout_rs_threshold": (str,),
    "lora_A_init_method": (list,),
}
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "a section with settings of its own"),
)


def key_problem(key: str, added: bool, known: Collection[str], version: str) -> str | None:
    """What is wrong with a key, if anything; `added` where it is written with a leading +, `known` are verl's own."""
    if added:
        return f"verl {version} has {key} already; write it without the leading +" if key in known else None
    if key in known:
        return None
    last = key.rpartition(".")[2]
    # A key in another place is a likelier slip than one that merely looks alike.
    elsewhere = sorted(one for one in known if one.rpartition(".")[2] == last)
    hint = f" (did you mean {elsewhere[0]}?)" if len(elsewhere) == 1 else did_you_mean(key, sorted(known))
    return (
        f"{key} is no setting of verl {version}{hint}; to add one that verl's configuration lacks, write it with a "
        "leading +"
    )


def kind_problem(key: str, was: Any, now: Any) -> str | None:
    """What is wrong with a value, if it is of another kind than verl's own."""
    if was is None or now is None or was == "???":
        return None
    kinds, wanted = next((kinds, word) for kinds, word in _KINDS if isinstance(was, kinds))
    if isinstance(now, kinds) and isinstance(now, bool) == isinstance(was, bool):
        return None
    if not isinstance(now, bool) and isinstance(now, _ALSO.get(key.rpartition(".")[2], ())):
        return None
    quoted = ", without quotes" if isinstance(now, str) and wanted in ("true or false", "a number") else ""
    return f"{key} must be {wanted}{quoted}, as verl's own {was!r} (got {now!r})"


def fields(package: Path, target: str) -> frozenset[str] | None:
    """The fields of the class that `target` (verl.workers.config.RolloutConfig) names, inherited ones too.

    None if a class of the chain is not in that module or package: then nothing is known.
    """
    *modules, name = target.split(".")
    if modules[:1] != ["verl"]:
        return None
    place = package.joinpath(*modules[1:])
    classes = {
        one.name: one
        for file in _sources(place)
        for one in ast.parse(file.read_text("utf-8")).body
        if isinstance(one, ast.ClassDef)
    }
    return _with_inherited(classes, name)


def _sources(place: Path) -> Iterator[Path]:
    single = place.with_suffix(".py")
    yield from [single] if single.is_file() else sorted(place.glob("*.py"))


def _with_inherited(classes: dict[str, ast.ClassDef], name: str) -> frozenset[str] | None:
    if name == "BaseConfig":  # verl/base_config.py: every dataclass's root, with no settings of its own
        return frozenset()
    if name not in classes:
        return None
    found = {
        line.target.id
        for line in classes[name].body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    for base in classes[name].bases:
        inherited = _with_inherited(classes, base.id) if isinstance(base, ast.Name) else None
        if inherited is None:
            return None
        found |= inherited
    return frozenset(found)
