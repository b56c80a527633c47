"""Finds the settings of imported runs: from their sources, else from the import's statements and the workload."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from analysis.setting_terms import distinct
from common.dotted import flatten, positive_int
from common.findings import Finding
from common.model_facts import same_model
from common.published import check_option_name, check_text
from engines import engine_named
from trainers.cases import Case, Settings, StackPins, label_and_point
from trainers.protocol import Trainer
from trainers.registry import trainer_named
from workflow.preflight.cases import case_of
from workflow.preflight.texts import finding

Spec = Mapping[str, Any]
"""The content of a run's spec.json."""
# What an import may state of its run in place of the workload.
_STATED = ("gpu", "nodes", "gpus_per_node", "batch_size", "max_response_length")
# The workload's keys that a trainer's configuration states, beside batch_size.
_CONFIGURED = (
    *("model", "steps", "num_generations", "max_prompt_length", "max_response_length", "temperature", "top_p"),
    *("learning_rate", "nodes", "gpus_per_node"),
)
_OF_A_STEP = ("prompts", "mini_prompts", "mini_batches")
# What the checks of one case need.
_NEEDED = ("model", "batch_size", "num_generations", "max_prompt_length", "max_response_length", "steps")


def imported_cases(
    specs: Iterable[Spec], read: Mapping[str, Mapping[str, Any]], stack_of: Callable[[str], StackPins]
) -> list[Case]:
    """The cases of imported runs; those whose settings are unknown say why.

    `read` maps run_id to the content of imported.json, where it exists. A source's own configuration wins over what
    the stack and the workload would give.
    """
    pins = cache(stack_of)
    return distinct(
        _case(spec, read.get(spec["run_id"], {}), pins(spec["stack"]) if spec["stack"] else None) for spec in specs
    )


def _case(spec: Spec, source: Mapping[str, Any], stack: StackPins | None) -> Case:
    if case := _from_source(spec, source, stack):
        return case
    if stack is not None and spec["trainer_args"]:
        return _with_statements(case_of([spec], stack, None), spec["import"])
    settings = _partial(source) or Settings({}, frozenset())
    why, facts = _why_unknown(spec, source, stack), _facts(spec, source)
    return Case(**_identity(spec, source, stack), workload={}, settings=settings, unknown=why, stated=facts)


def factor_findings(specs: Iterable[Spec], read: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """A finding for each factor of an imported run that contradicts the run's own configuration.

    `read` is that of `imported_cases`. Impossible although it has run: the comparison would mislabel it.
    """
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for spec in specs:
        settings = _source_settings(read.get(spec["run_id"], {}))
        own = _own_workload(spec, settings)
        if settings is not None and _engines_apart(_trainer(spec), settings):
            own.pop("batch_size", None)  # a step of such a loop takes whatever completions are ready
        for path, value in spec["factors"].items():
            key = path.removeprefix("workload.").removesuffix(".source")
            if path.startswith("workload.") and key in own and value is not None and not _agree(value, own[key]):
                contradiction = (spec["arm"], path, str(_plain(value)), str(_plain(own[key])))
                found.setdefault(contradiction, []).append(spec["run_id"])
    for (arm, path, value, actual), run_ids in found.items():
        runs = f"run{'s' * (len(run_ids) > 1)} {', '.join(run_ids)}"
        yield finding("factor-contradicts-run", arm, arm=arm, runs=runs, path=path, value=value, actual=actual)


def _plain(value: Any) -> Any:
    """A model by its source alone."""
    return value.get("source") if isinstance(value, Mapping) else value


def _agree(factor: Any, own: Any) -> bool:
    """Whether a factor can equal the run's own value; a local folder's name does not identify a model."""
    factor, own = _plain(factor), _plain(own)
    try:
        return math.isclose(float(factor), float(own), rel_tol=1e-9)
    except (TypeError, ValueError):
        return factor == own or same_model(str(factor), str(own)) or str(own).startswith(("/", ".", "~"))


def _stated(spec: Spec, name: str) -> Any:
    """What the experiment states of a run: its import, else the workload and the arm's options; else None."""
    if (value := spec["import"][name]) is not None:
        return value
    if name == "tensor_parallel":
        return flatten(spec["options"]).get(_trainer(spec).key(name))
    value = spec["workload"].get(name)
    return value.get("source") if isinstance(value, dict) else value


def _trainer(spec: Spec) -> Trainer:
    return trainer_named(spec["trainer"])


def _with_statements(case: Case, stated: Mapping[str, Any]) -> Case:
    """A case from the stack and the workload, with the import's own statements instead where it makes them."""
    workload = {name: stated[name] for name in _STATED if stated[name] is not None}
    if stated["model"] is not None and stated["model"] != case.workload["model"]["source"]:
        workload["model"] = {"source": stated["model"]}
    return replace(case, workload={**case.workload, **workload}, imported=True)


def is_complete(case: Case) -> bool:
    """Whether the workload is known well enough for the checks of one case."""
    return all(case.workload.get(key) is not None for key in _NEEDED)


def _why_unknown(spec: Spec, source: Mapping[str, Any], stack: StackPins | None) -> str:
    """Why a run's settings are unknown, and what would make them known."""
    arm, trainer = spec["arm"], spec["trainer"]
    if not source:
        has = "was not read yet"
    else:
        part = source.get("resolved") or source.get("command")
        has = f"holds no whole configuration of {trainer}" if part else "holds none of its settings"
    if stack is None:
        lacks = "the experiment gives it no stack"
    elif spec["workload"]:
        lacks = f"trainer {trainer} has no adapter"
    else:
        lacks = "the experiment gives it no workload"
    known = f"give arms.{arm}.stack with a workload, or a source that holds the configuration, such as a wandb run"
    if "read_as" in source:
        known = "wandb's folder has them, if the script writes one: options.read, the flag --read of ab"
    return f"settings of arm {arm}: its source {has}, and {lacks} ({known})"


def _identity(spec: Spec, source: Mapping[str, Any], stack: StackPins | None) -> dict[str, Any]:
    """The fields of a case beside its workload and its settings; the source's versions win over the stack's."""
    label, point = label_and_point(spec)
    trainer = _trainer(spec)
    versions = {str(name): str(version) for name, version in (source.get("versions") or {}).items() if version}
    version = versions.get(trainer.distribution) or versions.get(trainer.name) or spec["import"]["version"]
    version = str(version or (stack.trainer_version if stack is not None else ""))
    on_cpu = _stated(spec, "gpus_per_node") == 0
    accelerator = stack.accelerator if stack is not None else "cpu" if on_cpu else "cuda"
    packages = {**(stack.packages if stack is not None else {}), **versions}
    return {
        "arm": spec["arm"],
        "label": label,
        "trainer": trainer,
        "engine": engine_named(spec["engine"]),
        "stack": spec["stack"],
        "version": version,
        "pins": StackPins(accelerator, version, packages),
        "env": spec["env"],
        "point": point,
        "imported": True,
        "runs": (spec["run_id"],),
    }


def _from_source(spec: Spec, source: Mapping[str, Any], stack: StackPins | None) -> Case | None:
    """A case from the configuration in a run's own source; None if the source has no whole one."""
    settings = _source_settings(source)
    if settings is None:
        return None
    own = _own_workload(spec, settings)
    # The settings of a trainer with the key `prompts` hold the whole workload.
    if "prompts" in _trainer(spec).keys and any(key not in own for key in _NEEDED if key != "steps"):
        return None
    # The order of analysis/roofline/setup.py: the run's own values, else the experiment's.
    workload = {name: value for name in _STATED if (value := _stated(spec, name)) is not None} | own
    workload.setdefault("steps", source.get("last_step"))
    return Case(**_identity(spec, source, stack), workload=workload, settings=settings)


def _facts(spec: Spec, source: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a run without a whole configuration: from its source, else from the experiment."""
    settings = _partial(source)
    own = {name: _plain(value) for name, value in _own_workload(spec, settings).items()}
    if settings is not None and (parallel := settings.get(_trainer(spec).key("tensor_parallel"))):
        own["tensor_parallel"] = parallel
    return {name: own.get(name, _stated(spec, name)) for name in (*_STATED, "model", "tensor_parallel")}


def _partial(source: Mapping[str, Any]) -> Settings | None:
    """What a source has of its settings: a part of its configuration, or what its start command gives."""
    return _source_settings(source, "resolved") or _source_settings(source, "command")


def _source_settings(source: Mapping[str, Any], part: str = "resolved") -> Settings | None:
    """The settings in a run's configuration, whole or in part, or in its start command; None if there are none."""
    resolved = source.get(part)
    if not isinstance(resolved, Mapping) or not resolved:
        return None
    values = {key: value for key, value in flatten(resolved).items() if _is_publishable(key, value)}
    if part == "command":
        return Settings(
            {key: value for key, value in values.items() if value is not None}, frozenset(flatten(resolved))
        )
    # engine_kwargs are empty in verl's defaults: any value was set by the user.
    given = frozenset(key for key, value in values.items() if ".engine_kwargs." in key and value is not None)
    return Settings(values, given, composed=True)


def _own_workload(spec: Spec, settings: Settings | None) -> dict[str, Any]:
    """The workload's keys that a run's own settings state, with their values."""
    if settings is None:
        return {}
    trainer = _trainer(spec)
    own = {key: trainer.lookup(settings.values, key) for key in _CONFIGURED}
    if isinstance(own["steps"], int) and own["steps"] < 1:
        own["steps"] = None
    path = own["model"]
    own["model"] = {"source": path} if isinstance(path, str) and path else None
    count = {name: positive_int(trainer.lookup(settings.values, name)) for name in _OF_A_STEP}
    prompts = count["prompts"] or (count["mini_prompts"] or 0) * (count["mini_batches"] or 0)
    own["batch_size"] = prompts * (positive_int(own["num_generations"]) or 0) or None
    if _engines_apart(trainer, settings):  # these count the trainer's nodes and GPUs only
        own["nodes"] = own["gpus_per_node"] = None
    return {key: value for key, value in own.items() if value is not None}


def _is_publishable(key: str, value: Any) -> bool:
    """False for what looks like a secret, which another logger may have stored in the configuration."""
    try:
        check_option_name(key, key)
        check_text(str(value), key)
    except ValueError:
        return False
    return True


def _engines_apart(trainer: Trainer, settings: Settings) -> bool:
    """Whether the engines have GPUs of their own."""
    return any(settings.int(key) > 0 for key in trainer.keys.get("engine_nodes", ()))
