"""What settings did the runs have that were trained elsewhere? As their sources hold them, else as is said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workflow.jobs.verl_overrides import leaves
from workflow.plan import Plan, Run
from workflow.preflight.cases import ACTOR, MODEL, ROLLOUT, Case, StackTold, case_of, different, names_of
from workflow.preflight.settings import Settings
from workflow.published import check_option_name, check_text

# What an import may say of its run that the workload says of all.
_SAID = ("gpu", "nodes", "gpus_per_node", "batch_size", "max_response_length")
# Without these no check of a case can be made.
_NEEDED = ("model", "batch_size", "num_generations", "max_prompt_length", "max_response_length", "steps")


@dataclass(frozen=True, eq=False)
class Untold:
    """An imported run of whose settings nothing is known: `case` has none."""

    case: Case
    why: str
    words: Mapping[str, Any]
    """What is known of it all the same: `gpu`, `nodes`, ..., as its import says, else the workload."""


def imported_cases(
    plan: Plan, read: Mapping[str, Mapping[str, Any]], stack_of: Callable[[str], StackTold]
) -> tuple[list[Case], list[Untold]]:
    """The cases of a plan's imported runs, and those of which too little is known.

    `read` holds the contents of imported.json by run_id, where they are there. What a source holds itself counts more
    than what its stack and the workload would have made of it.
    """
    cases, untold = [], []
    for run in different(plan.imports.values()):
        stack = stack_of(run.stack) if run.stack else None
        held = read.get(run.run_id, {})
        case = _of_source(run, held, stack)
        if case is None and stack is not None and run.spec["trainer_args"]:
            case = _as_said(case_of(run, stack, None), run.spec["import"])
        if case is None:
            words = {name: _said(run, name) for name in (*_SAID, "model", "tensor_parallel")}
            untold.append(Untold(_empty(run, held, stack), _why(run, held, stack), words))
        else:
            cases.append(case)
    return cases, untold


def _said(run: Run, name: str) -> Any:
    """What the experiment says of a run: its import, else the workload and the arm's options; None if neither does."""
    if (value := run.spec["import"][name]) is not None:
        return value
    if name == "tensor_parallel":
        key = f"{ROLLOUT}.tensor_model_parallel_size" if run.spec["trainer"] == "verl" else "vllm_tensor_parallel_size"
        return dict(leaves(run.spec["options"])).get(key)
    value = run.spec["workload"].get(name)
    return value.get("source") if isinstance(value, dict) else value


def _as_said(case: Case, said: Mapping[str, Any]) -> Case:
    """A case that the stack and the workload would have made, with what is said of the run itself instead."""
    words = {name: said[name] for name in _SAID if said[name] is not None}
    if said["model"] is not None and said["model"] != case.workload["model"]["source"]:
        words["model"] = {"source": said["model"]}
    return replace(case, workload={**case.workload, **words}, imported=True)


def is_complete(case: Case) -> bool:
    """Whether enough is known of a case for the checks of one case at a time."""
    return all(case.workload.get(word) is not None for word in _NEEDED)


def _why(run: Run, held: Mapping[str, Any], stack: StackTold | None) -> str:
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


def _empty(run: Run, held: Mapping[str, Any], stack: StackTold | None) -> Case:
    label, point = names_of(run.spec)
    return Case(
        arm=run.spec["arm"],
        label=label,
        trainer=run.spec["trainer"],
        engine=run.spec["engine"],
        stack=run.stack,
        version=_version(run, held, stack),
        told=_told(run, held, stack),
        workload={},
        env=run.spec["env"],
        settings=Settings({}, frozenset()),
        point=point,
        imported=True,
    )


def _of_source(run: Run, held: Mapping[str, Any], stack: StackTold | None) -> Case | None:
    """A case by the configuration that a run's own source holds; None if it holds no whole one."""
    trainer, resolved = run.spec["trainer"], held.get("resolved")
    if not isinstance(resolved, Mapping) or not resolved:
        return None
    flat = {key: value for key, value in leaves(resolved) if _may_be_shown(key, value)}
    # verl's defaults hold empty engine_kwargs: what stands there was asked for.
    given = frozenset(key for key, value in flat.items() if ".engine_kwargs." in key and value is not None)
    settings = Settings(flat, given, composed=True)
    words = (_words_of_verl if trainer == "verl" else _words_of_trl)(settings)
    if trainer == "verl" and any(words[word] is None for word in _NEEDED if word != "steps"):
        return None
    known = {key: run.spec["import"][key] for key in ("gpu", "nodes", "gpus_per_node")}
    # As analysis/roofline/setup.py: what the run's own settings say, else what the experiment says of the run itself.
    words = {key: value for some in (known, words) for key, value in some.items() if value is not None}
    # What neither says, the workload may.
    words = {key: value for key in _SAID if (value := _said(run, key)) is not None} | words
    words.setdefault("steps", held.get("last_step"))
    return replace(_empty(run, held, stack), workload=words, settings=settings)


def _may_be_shown(key: str, value: Any) -> bool:
    """Not what looks like a secret: somebody else's logger may have taken it into the run's configuration."""
    try:
        check_option_name(key, key)
        check_text(str(value), key)
    except ValueError:
        return False
    return True


def _words_of_verl(settings: Settings) -> dict[str, Any]:
    """The workload's words by verl's settings; None where they do not say it."""
    batch, n = settings.get("data.train_batch_size"), settings.get(f"{ROLLOUT}.n")
    path = settings.get(f"{MODEL}.path")
    return {
        "model": {"source": path} if path else None,
        "steps": settings.get("trainer.total_training_steps"),
        "batch_size": batch * n if isinstance(batch, int) and isinstance(n, int) else None,
        "num_generations": n,
        "max_prompt_length": settings.get("data.max_prompt_length"),
        "max_response_length": settings.get("data.max_response_length"),
        "temperature": settings.get(f"{ROLLOUT}.temperature"),
        "top_p": settings.get(f"{ROLLOUT}.top_p"),
        "learning_rate": settings.get(f"{ACTOR}.optim.lr"),
        "nodes": settings.get("trainer.nnodes"),
        "gpus_per_node": settings.get("trainer.n_gpus_per_node"),
    }


def _words_of_trl(settings: Settings) -> dict[str, Any]:
    """The same by the arguments of TRL's trainer, whose names ms-swift shares."""
    path = settings.get("model_name_or_path") or settings.get("_name_or_path") or settings.get("model")
    return {
        "model": {"source": path} if isinstance(path, str) and path else None,
        "steps": settings.get("max_steps") if settings.int("max_steps", -1) > 0 else None,
        "num_generations": settings.get("num_generations"),
        "max_prompt_length": settings.get("max_prompt_length"),
        "max_response_length": settings.get("max_completion_length"),
        "temperature": settings.get("temperature"),
        "top_p": settings.get("top_p"),
        "learning_rate": settings.get("learning_rate"),
    }


def _told(run: Run, held: Mapping[str, Any], stack: StackTold | None) -> StackTold:
    """What the runs had installed: their source's word over the stack's."""
    versions = {str(name): str(version) for name, version in (held.get("versions") or {}).items() if version}
    on_cpu = _said(run, "gpus_per_node") == 0
    accelerator = stack.accelerator if stack is not None else "cpu" if on_cpu else "cuda"
    packages = {**(stack.packages if stack is not None else {}), **versions}
    return StackTold(accelerator, _version(run, held, stack), packages)


def _version(run: Run, held: Mapping[str, Any], stack: StackTold | None) -> str:
    """The trainer's; empty where nobody says it."""
    said = (held.get("versions") or {}).get(run.spec["trainer"]) or run.spec["import"]["version"]
    return str(said or (stack.trainer_version if stack is not None else ""))
