"""Which settings does a dataclass of verl's take? Read from its source, since importing it would import torch.

verl 0.9.1 makes dataclasses of parts of its configuration (those with `_target_`), when the workers start: a setting
that Hydra was told to add and the dataclass lacks ends the run there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


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
