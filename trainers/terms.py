"""Defines training terms that do not depend on a trainer, so that settings of two trainers are compared by meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.cases import Case


@dataclass(frozen=True, slots=True)
class TermValue:
    """A case's value of a term; None if its settings do not give it."""

    value: object
    keys: tuple[str, ...] = ()
    """The settings that give it; none if the trainer has it fixed."""


Terms = Mapping[str, TermValue]

_UPDATE = "the same gradient changes the weights differently"
_LOSS = "the same completions give another gradient"
_SAMPLING = "completions are sampled differently, with other lengths and rewards"
TRAINED_WEIGHTS, WEIGHTS_SENT = "trained weights", "weights sent to the engine"
POLICY_VERSION, NEWEST = "weights that generate", "the newest"
PROMPT_ORDER, BY_SEED = "order of the prompts", "transformers' sampler, by the run's seed"
GPUS_PER_COPY = "GPUs that share one copy of the weights"
ALL_WEIGHTS, ADAPTER_ONLY = "all weights", "only the adapter"
TURNS, ONE_TURN = "turns of a completion", "one"
TERMS: Mapping[str, str] = {
    "optimizer": _UPDATE,
    "learning rate": _UPDATE,
    "learning rate schedule": _UPDATE,
    "Adam's betas": _UPDATE,
    "Adam's epsilon": _UPDATE,
    "weight decay": _UPDATE,
    "gradient norm limit": _UPDATE,
    "updates per batch": "a step trains more, and takes longer",
    TRAINED_WEIGHTS: _UPDATE,
    GPUS_PER_COPY: "a pass gathers weights from the others, and an update needs less memory",
    WEIGHTS_SENT: "weight sync and generation take another time with any engine",
    POLICY_VERSION: "generation and update overlap, and an update learns from older completions",
    "number format of the weights": "half precision loses small updates, and needs half the memory",
    "number format of a pass": "kernels and rounding differ",
    "loss": _LOSS,
    "clip range": _LOSS,
    "dual-clip bound": _LOSS,
    "level of the ratio": _LOSS,
    "divisor of the advantages": _LOSS,
    "epsilon of that divisor": "the advantages of a group with nearly equal rewards differ",
    "reward weights": "the policy learns another score",
    "KL penalty": _LOSS,
    "KL estimate": "the penalty differs where policy and reference are far apart",
    "reference follows the policy": _LOSS,
    "entropy bonus": _LOSS,
    "truncated completions": _LOSS,
    "correction of the engine's probabilities": _LOSS,
    "log-probabilities of the old policy": "only one trainer has a pass over all completions in its step",
    PROMPT_ORDER: "equal steps learn from other prompts",
    "temperature": _SAMPLING,
    "top-p": _SAMPLING,
    "top-k": _SAMPLING,
    "min-p": _SAMPLING,
    "repetition penalty": _SAMPLING,
    "completions per prompt": "the work of a step differs",
    "longest completion": "the work of a step differs",
    TURNS: "a step generates several times, with longer prompts each time",
}
"""Term -> the effect of a difference."""
_OF_A_RATIO = frozenset({"clip range", "dual-clip bound", "level of the ratio"})
_ONCE = "updates per batch"


def term(case: Case, make: Callable[..., object], *keys: str) -> TermValue:
    """The term that `make` computes from some settings; None if one is missing or has an unknown value."""
    if not all(key in case.settings for key in keys):
        return TermValue(None, keys)
    try:
        return TermValue(make(*(case.settings.get(key) for key in keys)), keys)
    except (TypeError, ValueError):  # an imported run's setting may be null, or text such as auto
        return TermValue(None, keys)


def adapter_text(rank: Any, alpha: Any, dropout: Any, modules: Any) -> str:
    """A LoRA adapter in words; `modules` are its target modules, or a trainer's name for them."""
    where = ", ".join(sorted(map(str, modules))) if isinstance(modules, list | tuple) else str(modules or "the default")
    sizes = [f"{one:g}" if isinstance(one, float) else str(one) for one in map(number, (rank, alpha, dropout))]
    return "an adapter: rank {}, alpha {}, dropout {}, in {}".format(*sizes, where)


def number(value: Any) -> object:
    """A number, also one written as text; YAML reads 1e-6 as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None if value is None else str(value)


def number_or_off(off: Sequence[object]) -> Callable[[Any], object]:
    """A number, or `off` where it is one of the values that turn it off."""
    return lambda value: "off" if value is None or number(value) in off else number(value)


def schedule(kind: Any, warmup: Any, share: Any = None) -> object:
    """A learning rate schedule in words; constant schedules differ only by their warm-up.

    `warmup` is in steps or, below 1, a share of all steps. `share` counts if `warmup` is 0.
    """
    name = "constant" if str(kind) in ("constant", "constant_with_warmup") else str(kind)
    steps, of_all = float(warmup or 0), float(share or 0)
    if steps >= 1:
        return f"{name} after {int(steps)} steps"
    of_all = steps if steps > 0 else of_all
    return f"{name} after {of_all:g} of all steps" if of_all > 0 else name


def terms_of(cases: Sequence[Case]) -> dict[str, list[TermValue]]:
    """Each term with every case's value, if cases of two trainers or more have terms; else nothing."""
    by_case = [case.trainer.rules.terms(case) for case in cases]
    if len({case.trainer.name for case, terms in zip(cases, by_case, strict=True) if terms}) < 2:
        return {}
    known = [name for name in TERMS if any(name in terms for terms in by_case)]
    return {name: [terms.get(name, TermValue(None)) for terms in by_case] for name in known}


def no_effect(name: str, of: Mapping[str, Sequence[TermValue]], cases: Sequence[Case]) -> str:
    """Why a difference in a term has no effect; empty if it may have one."""
    if name not in _OF_A_RATIO or _ONCE not in of:
        return ""
    one_mini_batch = all(
        "batch_size" in case.workload and case.workload.get("mini_batch_size") in (None, case.workload["batch_size"])
        for case in cases
    )
    if one_mini_batch and all(one.value == 1 for one in of[_ONCE]):
        return "every batch has one update, by the weights that generated it: each ratio is 1, and nothing is clipped"
    return ""
