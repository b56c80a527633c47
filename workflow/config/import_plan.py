"""Which runs does an imported arm mean, and what is known of them before their sources are read?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from common.errors import UserError
from common.messages import did_you_mean, short
from common.published import as_number
from trainers.registry import StackFacts, adapter_of
from workflow.config.imports import Import, ImportedRun
from workflow.config.model import Config
from workflow.config.sweep import at_point, target_of


def require_possible_sweep(config: Config) -> None:
    """A `UserError` for a sweep that would vary what is there already."""
    for path in config.sweep:
        keys = path.split(".")
        if not config.trained:
            raise UserError(
                f"sweep path {path} varies nothing: no arm is trained; say in factors of arms.<arm>.import.runs "
                "where each run lies"
            )
        if keys[0] == "arms" and len(keys) > 1 and keys[1] in config.imports:
            raise UserError(
                f"sweep path {path} varies what exists already: arm {keys[1]} is imported; say in factors of "
                f"arms.{keys[1]}.import.runs where each of its runs lies"
            )


def require_same_factors(config: Config) -> None:
    """A `UserError` where imported runs name their factors differently: no two of them would be compared.

    With a sweep its paths are the names, and each run is held against those.
    """
    if config.sweep:
        return
    first: tuple[str, ImportedRun] | None = None
    for name, imported in config.imports.items():
        for index, run in enumerate(imported.runs):
            where = f"arms.{name}.import.runs.{index}.factors"
            first = first or (where, run)
            there, names = list(first[1].factors), list(run.factors)
            if set(there) == set(names):
                continue
            hint = next((h for path in names if path not in there and (h := did_you_mean(path, there))), "")
            raise UserError(
                f"{where} has {', '.join(names) or 'no factor'}, and {first[0]} has {', '.join(there) or 'no factor'}"
                f"{hint}: runs are compared where all their factors are equal, so give every imported run the same "
                "names"
            )


def imported_specs(config: Config, name: str, facts: StackFacts | None) -> Iterator[dict[str, Any]]:
    """The specification of each run of an imported arm, but for what the plan adds to all: id and fingerprint.

    `facts` are those of the stack that the arm names, if it does.
    """
    imported = config.imports[name]
    for index, run in enumerate(imported.runs):
        where = f"arms.{name}.import.runs.{index}"
        factors = _factors(config, run, where)
        arm, workload = config.arm(name), None
        if config.workload is not None:
            arm, workload = at_point(config, name, {path: factors[path] for path in factors if _is_a_word(path)})
        adapter = adapter_of(arm)
        args: dict[str, Any] = {}
        if facts is not None and workload is not None and adapter is not None:
            args = adapter.trainer_args(arm, workload, run.seed or 0, facts)
        yield {
            "arm": name,
            "trainer": arm.trainer,
            "engine": arm.engine,
            "stack": arm.stack,
            "seed": run.seed,
            "factors": factors,
            "workload": workload.model_dump(mode="json") if workload is not None else {},
            "options": arm.options,
            "env": arm.env,
            "trainer_args": args,
            "import": _known(imported, run, facts),
        }


def _is_a_word(path: str) -> bool:
    return path.startswith("workload.")


def _factors(config: Config, run: ImportedRun, where: str) -> dict[str, Any]:
    """A run's factors, as the sweep writes them; a `UserError` where they lie beside it."""
    for path in run.factors:
        if _is_a_word(path) and config.workload is not None:
            target_of(path, config)
    shared = [path for path in config.sweep if target_of(path, config)[0] is None]
    found: dict[str, Any] = {}
    for path in shared:
        values = list(config.sweep[path])
        same = [value for value in values if path in run.factors and as_number(value) == run.factors[path]]
        # true == 1 in Python, and they are two options.
        same = [value for value in same if isinstance(value, bool) == isinstance(run.factors[path], bool)]
        if not same:
            got = short(run.factors[path]) if path in run.factors else "nothing"
            raise UserError(
                f"{where}.factors: the sweep varies {path}, and a run is compared at one of its values: "
                f"{', '.join(map(short, values))} (got {got}); give it as {path}: {short(values[0])}"
            )
        found[path] = same[0]
    return found | {path: value for path, value in run.factors.items() if path not in found}


def _known(imported: Import, run: ImportedRun, facts: StackFacts | None) -> dict[str, Any]:
    """What the arm itself says of a run, and the version that its stack pins.

    What the workload and the options say stays there: a run's own source knows better.
    """
    given = imported.model_dump(exclude={"runs"})
    if given["version"] is None and facts is not None:
        given["version"] = facts.trainer_version
    return {"sources": list(run.source), **given}
