"""Names the terms of a training in words of no trainer, so that settings of two trainers are compared by meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.cases import Case


@dataclass(frozen=True, slots=True)
class TermValue:
    """What a case's settings come to under a term: None where they do not tell it."""

    value: object
    keys: tuple[str, ...] = ()
    """The settings that say it; none where the trainer has it fixed."""


Terms = Mapping[str, TermValue]

_UPDATE = "the same gradient moves the weights otherwise"
_LOSS = "the same completions give another gradient"
_SAMPLING = "completions are drawn otherwise, and so have other lengths and rewards"
TRAINED_WEIGHTS, WEIGHTS_SENT = "what is trained", "what the engine gets of the weights"
POLICY_VERSION, NEWEST = "weights that write the completions", "the newest"
PROMPT_ORDER, BY_SEED = "order of the prompts", "transformers' sampler, by the run's seed"
GPUS_PER_COPY = "GPUs that share one copy of the weights"
ALL_WEIGHTS, ADAPTER_ONLY = "all weights", "the adapter alone"
TURNS, ONE_TURN = "turns of a completion", "one"
TERMS: Mapping[str, str] = {
    "optimizer": _UPDATE,
    "learning rate": _UPDATE,
    "learning rate's course": _UPDATE,
    "Adam's betas": _UPDATE,
    "Adam's epsilon": _UPDATE,
    "weight decay": _UPDATE,
    "largest norm of a gradient": _UPDATE,
    "updates from a batch": "a step trains more, and takes longer",
    TRAINED_WEIGHTS: _UPDATE,
    GPUS_PER_COPY: "a pass gathers weights from the others, and an update needs less memory",
    WEIGHTS_SENT: "the weight sync and the generation cost otherwise, whatever the engine",
    POLICY_VERSION: "generation and update overlap, and an update learns from older completions",
    "weights' number format": "half precision loses small updates, and takes half the memory",
    "number format of a pass": "other kernels, and other rounding",
    "loss": _LOSS,
    "clip range": _LOSS,
    "clip of a bad completion's ratio": _LOSS,
    "what a ratio is of": _LOSS,
    "advantages are divided by": _LOSS,
    "added to that divisor": "where a group's rewards are nearly equal, its advantages differ",
    "weights of the rewards": "another score is learned",
    "KL penalty": _LOSS,
    "KL estimate": "where policy and reference are far apart, the penalty differs",
    "reference follows the policy": _LOSS,
    "entropy bonus": _LOSS,
    "completions that are cut off": _LOSS,
    "correction of the engine's probabilities": _LOSS,
    "log-probabilities of the old policy": "a pass over all completions is in the step of one trainer alone",
    PROMPT_ORDER: "equal steps learn from other prompts",
    "temperature": _SAMPLING,
    "top-p": _SAMPLING,
    "top-k": _SAMPLING,
    "min-p": _SAMPLING,
    "repetition penalty": _SAMPLING,
    "completions of a prompt": "a step is other work",
    "longest completion": "a step is other work",
    TURNS: "a step generates several times, with longer prompts each time",
}
"""Term -> what a difference does."""
_OF_A_RATIO = frozenset({"clip range", "clip of a bad completion's ratio", "what a ratio is of"})
_ONCE = "updates from a batch"


def term(case: Case, make: Callable[..., object], *keys: str) -> TermValue:
    """What `make` makes of some settings; not told where one of them is not there, or is none that it knows."""
    if not all(key in case.settings for key in keys):
        return TermValue(None, keys)
    try:
        return TermValue(make(*(case.settings.get(key) for key in keys)), keys)
    except (TypeError, ValueError):  # an imported run's may be null, or a word such as auto
        return TermValue(None, keys)


def adapter_text(rank: Any, alpha: Any, dropout: Any, modules: Any) -> str:
    """A LoRA adapter in words; `modules` are those that it is put into, or a trainer's word for them."""
    where = ", ".join(sorted(map(str, modules))) if isinstance(modules, list | tuple) else str(modules or "the default")
    told = [f"{one:g}" if isinstance(one, float) else str(one) for one in map(number, (rank, alpha, dropout))]
    return "an adapter: rank {}, alpha {}, dropout {}, in {}".format(*told, where)


def number(value: Any) -> object:
    """A number, however it was written; YAML reads 1e-6 as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None if value is None else str(value)


def number_or_off(off: Sequence[object]) -> Callable[[Any], object]:
    """A number, or `off` where it is one of the values that turn it off."""
    return lambda value: "off" if value is None or number(value) in off else number(value)


def schedule(kind: Any, warmup: Any, share: Any = None) -> object:
    """A schedule in words: constant schedules differ by their warm-up alone.

    The warm-up is in steps or, below 1, a share of all steps, as `share` is, which counts where no steps are given.
    """
    name = "constant" if str(kind) in ("constant", "constant_with_warmup") else str(kind)
    steps, of_all = float(warmup or 0), float(share or 0)
    if steps >= 1:
        return f"{name} after {int(steps)} steps"
    of_all = steps if steps > 0 else of_all
    return f"{name} after {of_all:g} of all steps" if of_all > 0 else name


def terms_of(cases: Sequence[Case]) -> dict[str, list[TermValue]]:
    """Each term with what every case says of it, where cases of two trainers or more tell terms; else nothing."""
    told = [case.trainer.terms(case) for case in cases]
    if len({case.trainer.name for case, terms in zip(cases, told, strict=True) if terms}) < 2:
        return {}
    return {
        name: [terms.get(name, TermValue(None)) for terms in told] for name in TERMS if any(name in of for of in told)
    }


def no_effect(name: str, of: Mapping[str, Sequence[TermValue]], cases: Sequence[Case]) -> str:
    """Why a difference in a term does nothing; empty where it may do something."""
    if name not in _OF_A_RATIO or _ONCE not in of:
        return ""
    whole = all(case.workload.get("mini_batch_size") in (None, case.workload.get("batch_size")) for case in cases)
    known = all("batch_size" in case.workload for case in cases)
    if whole and known and all(one.value == 1 for one in of[_ONCE]):
        return "every batch has one update, from completions of these weights: each ratio is 1, and nothing is clipped"
    return ""
