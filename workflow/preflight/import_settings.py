"""Finds the settings of runs that were trained elsewhere: as their sources hold them, else as is said of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from common.dotted import flatten
from common.findings import Finding
from common.model_facts import same_model
from common.published import check_option_name, check_text
from engines import engine_named
from trainers.cases import Case, Settings, StackPins, label_and_point
from trainers.registry import Trainer, trainer_named
from workflow.config.plan import Plan, PlannedRun
from workflow.preflight.cases import case_of, different

# What an import may say of its run that the workload says of all.
_SAID = ("gpu", "nodes", "gpus_per_node", "batch_size", "max_response_length")
# What a configuration says of a run beside that.
_OWN = (
    *("model", "steps", "num_generations", "max_prompt_length", "max_response_length", "temperature", "top_p"),
    *("learning_rate", "nodes", "gpus_per_node"),
)
# Without these no check of a case can be made.
_NEEDED = ("model", "batch_size", "num_generations", "max_prompt_length", "max_response_length", "steps")


@dataclass(frozen=True, eq=False)
class UnknownSettings(Case):
    """An imported run of whose settings nothing is known."""

    why: str = ""
    words: Mapping[str, Any] = field(default_factory=dict)
    """What is known of it all the same: `gpu`, `nodes`, ..., as it says itself, else its import or the workload."""


def imported_cases(
    plan: Plan, read: Mapping[str, Mapping[str, Any]], stack_of: Callable[[str], StackPins]
) -> tuple[list[Case], list[UnknownSettings]]:
    """The cases of a plan's imported runs, and those of which too little is known.

    `read` holds the contents of imported.json by run_id, where they are there. What a source holds itself counts more
    than what its stack and the workload would have made of it.
    """
    cases, unknown = [], []
    for run in different(plan.imports.values()):
        stack = stack_of(run.stack) if run.stack else None
        held = read.get(run.run_id, {})
        case = _of_source(run, held, stack)
        if case is None and stack is not None and run.spec["trainer_args"]:
            case = _as_said(case_of(run, stack, None), run.spec["import"])
        if case is None:
            why, words = _why(run, held, stack), _facts(run, held)
            nothing: dict[str, Any] = {"workload": {}, "settings": Settings({}, frozenset())}
            unknown.append(UnknownSettings(**_named(run, held, stack), **nothing, why=why, words=words))
        else:
            cases.append(case)
    return cases, unknown


def factor_findings(plan: Plan, read: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """A finding for each word of the workload that factors say of imported runs whose own configuration denies it.

    `read` is that of `imported_cases`. Impossible although it has run: it would be compared as what it is not.
    """
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for run in plan.imports.values():
        settings = _held_settings(read.get(run.run_id, {}))
        own = _own_words(run, settings)
        if settings is not None and _engines_apart(_trainer(run), settings):
            own.pop("batch_size", None)  # such a loop takes for a step what is ready
        for path, value in run.spec["factors"].items():
            word = path.removeprefix("workload.").removesuffix(".source")
            if path.startswith("workload.") and word in own and value is not None and not _agree(value, own[word]):
                said = (run.spec["arm"], path, str(_plain(value)), str(_plain(own[word])))
                found.setdefault(said, []).append(run.run_id)
    for (arm, path, value, true), run_ids in found.items():
        runs = f"run{'s' * (len(run_ids) > 1)} {', '.join(run_ids)}"
        yield Finding(
            "impossible",
            "factor-contradicts-run",
            (arm,),
            f"{runs}: {path} is {value} by factors, and {true} in the configuration that the source holds",
            "runs are compared where their factors are equal: these would be told as what they were not",
            "the configuration that the run's source holds",
            f"arms.{arm}.import.runs: the factors that the run had, or the source of the run that is meant",
        )


def _plain(value: Any) -> Any:
    """A model by its source alone."""
    return value.get("source") if isinstance(value, Mapping) else value


def _agree(said: Any, own: Any) -> bool:
    """Whether a factor can be what the run itself says; a local folder's name tells no model."""
    said, own = _plain(said), _plain(own)
    try:
        return math.isclose(float(said), float(own), rel_tol=1e-9)
    except (TypeError, ValueError):
        return said == own or same_model(str(said), str(own)) or str(own).startswith(("/", ".", "~"))


def _said(run: PlannedRun, name: str) -> Any:
    """What the experiment says of a run: its import, else the workload and the arm's options; None if neither does."""
    if (value := run.spec["import"][name]) is not None:
        return value
    if name == "tensor_parallel":
        return flatten(run.spec["options"]).get(_trainer(run).key(name))
    value = run.spec["workload"].get(name)
    return value.get("source") if isinstance(value, dict) else value


def _trainer(run: PlannedRun) -> Trainer:
    return trainer_named(run.spec["trainer"])


def _as_said(case: Case, said: Mapping[str, Any]) -> Case:
    """A case that the stack and the workload would have made, with what is said of the run itself instead."""
    words = {name: said[name] for name in _SAID if said[name] is not None}
    if said["model"] is not None and said["model"] != case.workload["model"]["source"]:
        words["model"] = {"source": said["model"]}
    return replace(case, workload={**case.workload, **words}, imported=True)


def is_complete(case: Case) -> bool:
    """Whether enough is known of a case for the checks of one case at a time."""
    return all(case.workload.get(word) is not None for word in _NEEDED)


def _why(run: PlannedRun, held: Mapping[str, Any], stack: StackPins | None) -> str:
    """Why nothing is known of a run's settings, and what it would need."""
    arm, trainer = run.spec["arm"], run.spec["trainer"]
    has = (
        "was not read yet"
        if not held
        else f"holds no whole configuration of {trainer}"
        if held.get("resolved")
        else "holds none of its settings"
    )
    if stack is not None and run.spec["workload"]:
        lacks = f"there is no adapter for trainer {trainer}"
    else:
        lacks = f"the experiment gives it no {'workload' if stack is not None else 'stack'}"
    return (
        f"settings of arm {arm}: its source {has}, and {lacks} (arms.{arm}.stack with a workload, or a source that "
        "holds the configuration, such as a wandb run)"
    )


def _named(run: PlannedRun, held: Mapping[str, Any], stack: StackPins | None) -> dict[str, Any]:
    """What a case has beside its workload and its settings."""
    label, point = label_and_point(run.spec)
    return {
        "arm": run.spec["arm"],
        "label": label,
        "trainer": _trainer(run),
        "engine": engine_named(run.spec["engine"]),
        "stack": run.stack,
        "version": _version(run, held, stack),
        "pins": _pins(run, held, stack),
        "env": run.spec["env"],
        "point": point,
        "imported": True,
    }


def _of_source(run: PlannedRun, held: Mapping[str, Any], stack: StackPins | None) -> Case | None:
    """A case by the configuration that a run's own source holds; None if it holds no whole one."""
    settings = _held_settings(held)
    if settings is None:
        return None
    own = _own_words(run, settings)
    # A trainer whose settings hold the whole workload.
    if "prompts" in _trainer(run).keys and any(word not in own for word in _NEEDED if word != "steps"):
        return None
    # As analysis/roofline/setup.py: what the run itself says, else what is said of it.
    words = {name: value for name in _SAID if (value := _said(run, name)) is not None} | own
    words.setdefault("steps", held.get("last_step"))
    return Case(**_named(run, held, stack), workload=words, settings=settings)


def _facts(run: PlannedRun, held: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a run that holds no whole configuration: what it holds, else what is said of it."""
    settings = _held_settings(held)
    own = {name: _plain(value) for name, value in _own_words(run, settings).items()}
    if settings is not None and (parallel := settings.get(_trainer(run).key("tensor_parallel"))):
        own["tensor_parallel"] = parallel
    return {name: own.get(name, _said(run, name)) for name in (*_SAID, "model", "tensor_parallel")}


def _held_settings(held: Mapping[str, Any]) -> Settings | None:
    """The settings that a run's source holds, whole or in part; None if it holds none."""
    resolved = held.get("resolved")
    if not isinstance(resolved, Mapping) or not resolved:
        return None
    values = {key: value for key, value in flatten(resolved).items() if _may_be_shown(key, value)}
    # verl's defaults hold empty engine_kwargs: what stands there was asked for.
    given = frozenset(key for key, value in values.items() if ".engine_kwargs." in key and value is not None)
    return Settings(values, given, composed=True)


def _own_words(run: PlannedRun, settings: Settings | None) -> dict[str, Any]:
    """The workload's words as a run's own settings say them, without those that they do not say."""
    if settings is None:
        return {}
    trainer = _trainer(run)
    words = {word: trainer.lookup(settings.values, word) for word in _OWN}
    if isinstance(words["steps"], int) and words["steps"] < 1:
        words["steps"] = None
    path = words["model"]
    words["model"] = {"source": path} if isinstance(path, str) and path else None
    prompts, n = trainer.lookup(settings.values, "prompts"), words["num_generations"]
    words["batch_size"] = prompts * n if isinstance(prompts, int) and isinstance(n, int) else None
    if _engines_apart(trainer, settings):  # its own nodes and GPUs are the trainer's then
        words["nodes"] = words["gpus_per_node"] = None
    return {word: value for word, value in words.items() if value is not None}


def _may_be_shown(key: str, value: Any) -> bool:
    """Not what looks like a secret: somebody else's logger may have taken it into the run's configuration."""
    try:
        check_option_name(key, key)
        check_text(str(value), key)
    except ValueError:
        return False
    return True


def _engines_apart(trainer: Trainer, settings: Settings) -> bool:
    """Whether the engines have GPUs on which nothing trains."""
    return any(settings.int(key) > 0 for key in trainer.keys.get("engine_nodes", ()))


def _pins(run: PlannedRun, held: Mapping[str, Any], stack: StackPins | None) -> StackPins:
    """What the runs had installed: their source's word over the stack's."""
    versions = {str(name): str(version) for name, version in (held.get("versions") or {}).items() if version}
    on_cpu = _said(run, "gpus_per_node") == 0
    accelerator = stack.accelerator if stack is not None else "cpu" if on_cpu else "cuda"
    packages = {**(stack.packages if stack is not None else {}), **versions}
    return StackPins(accelerator, _version(run, held, stack), packages)


def _version(run: PlannedRun, held: Mapping[str, Any], stack: StackPins | None) -> str:
    """The trainer's; empty where nobody says it."""
    versions, trainer = held.get("versions") or {}, _trainer(run)
    said = versions.get(trainer.distribution) or versions.get(trainer.name) or run.spec["import"]["version"]
    return str(said or (stack.trainer_version if stack is not None else ""))
