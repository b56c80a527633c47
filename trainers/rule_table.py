"""Reads the rules of a trainer's `checks.toml`, one a row of `checks`.

`code`, `level`, `what`, `why`, `source` and `change` are a `Rule`'s. A rule finds something where each setting in `if`
has one of its values, or by the function of the trainer's module that `finds` names, without its underscore; `{got}` is
the last such value, or what the function returns. `releases`: those of the trainer that it is about; all without it.
`imported = false`: not of runs that were trained elsewhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainers.cases import Case, Rule


def rules_in(file: Path, module: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules of a file; `module` are the names of the one that has its functions."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["checks"]
    return tuple(_rule(row, module) for row in rows)


def _rule(row: Mapping[str, Any], module: Mapping[str, Any]) -> Rule:
    find: Callable[[Case], Any] | None = module[f"_{row['finds']}"] if "finds" in row else None
    wanted, releases = {} if find else row["if"], row.get("releases")

    def when(case: Case) -> Any:
        if releases is not None and case.version not in releases:
            return None
        if find:
            return find(case)
        found = [case.settings.get(key) for key in wanted]
        fits = all(one in values for one, values in zip(found, wanted.values(), strict=True))
        return str(found[-1]) if fits else None

    texts = {name: row[name] for name in ("what", "why", "source", "change")}
    return Rule(row["code"], row["level"], when, **texts, on_imported=row.get("imported", True))
