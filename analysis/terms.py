"""Makes a term: a setting or a reported fact of all runs, its values by arm, and whether the arms are equal in it.

The table of terms is made of these: setting_terms.py makes those of settings, reported_terms.py adds what finished runs
report. The preflight, `compare` and the report read that table.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from common.findings import COMPARED, NONE, NOT_GIVEN, SEVERAL, UNKNOWN, Equality, Finding, LedgerRow, Preflight
from common.messages import join_first
from common.verdicts import count_of
from engines import engines, reported

ALL_SETTINGS = "the settings of the trainer and the engine"
"""How the term begins that stands for settings of which no log says anything."""
MOST_LISTED = 6
_MOST_RUNS = 3
# Variables that do not affect speed: no finding, and equivalent. FSDP does not use Transformer Engine, whose is NVTE_*.
HARMLESS = frozenset(
    {
        *("HYDRA_FULL_ERROR", "NVTE_FUSED_ATTN", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"),
        *("SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE"),
        *("WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_SILENT"),
    }
)
# Those that name a job's processors and GPUs.
NO_SPEED = HARMLESS | {"CUDA_VISIBLE_DEVICES", "VLLM_CPU_OMP_THREADS_BIND"}
# What a run reports of its machine; which host it is does not count. And of its inputs, by key of done.json.
HARDWARE = ("cpu", "cpus", "threads", "memory_gib", "gpus", "driver")
INPUTS = {"data_sha256": "training data", "model_sha256": "starting model", "reward_models_sha256": "reward models"}


class Unequal(NamedTuple):
    """The finding on a term in which arms differ."""

    code: str
    why: str
    change: str


_IMPORT = "runs that share it; or, if the import states it wrongly, correct arms.<arm>.import"
TENSOR_PARALLEL = "GPUs of one engine (tensor parallel)"
_MACHINE = Unequal("hardware-differs", "another machine has another speed", "runs on machines of one kind")
_INPUT = Unequal("inputs-differ", "the arms do not do the same work", "the same files for all arms")
STATED: Mapping[str, Unequal] = {
    name: Unequal("import-differs", why, _IMPORT)
    for name, why in {
        "workload.gpu": "another GPU has another speed, whatever the engine",
        "workload.nodes": "other nodes are other machines and another network",
        "workload.gpus_per_node": "more GPUs do the same work sooner",
        "workload.batch_size": "a step of more completions is more work",
        "workload.max_response_length": "where longer responses are allowed, a step waits longer for its longest",
        "workload.model": "another model takes another time for each token",
        TENSOR_PARALLEL: "it decides how fast a response is written and how many run at once",
    }.items()
}
"""What an import may state of its runs."""


def _of_engine(name: str, code: str, why: str) -> Unequal:
    options = [f"{one.label}'s {' or '.join(one.options[name])}" for one in engines() if name in one.options]
    return Unequal(code, why, f"the same in all arms: {', '.join(options)}")


_ENGINES: Mapping[str, tuple[str, str]] = {
    reported.GRAPHS: (
        "cuda-graphs",
        "without graphs the CPU launches each of the hundreds of small kernels of a decoded token; decoding is most of "
        "a step",
    ),
    reported.GRAPH_SIZE: (
        "graph-sizes",
        "above that batch one engine decodes without graphs, the other still with them",
    ),
    reported.CACHE: ("memory-share", "an engine with a full cache makes sequences wait or computes them again"),
    reported.SEQUENCES: ("sequence-limit", "an engine with a lower limit makes sequences wait"),
    reported.PREFILL: ("prefill-limit", "passes over prompts differ in number and size, and decoding waits for them"),
    reported.PREFIX: ("prefix-cache", "only an engine with this cache reads a prompt of several completions once"),
    reported.QUANTISATION: ("quantisation", "another number format has another speed and other results"),
}
UNEQUAL: Mapping[str, Unequal] = {
    **STATED,
    **{name: _of_engine(name, *of) for name, of in _ENGINES.items()},
    "package torch": Unequal(
        "torch-versions",
        "its kernels, its allocator and its compiler run in training and in both engines",
        "stacks that pin the same release",
    ),
    **{f"hardware.{name}": _MACHINE for name in HARDWARE if name != "memory_gib"},
    **dict.fromkeys(INPUTS.values(), _INPUT),
    "commit of rolloutbench": Unequal(
        "code-differs",
        "other code trains, times and reads the runs",
        "runs of one commit",
    ),
    "measurement": Unequal(
        "clocks-differ",
        "the clocks of these runs contain different work",
        "runs trained by one release of rolloutbench",
    ),
}
"""The terms that make arms unequal by themselves. What a setting does is for the trainer's own rules."""


class TermPlace(Protocol):
    """Whose value it is: an arm with its own factors (`label`) at a point of the sweep, and the runs that have it."""

    @property
    def arm(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def point(self) -> str: ...
    @property
    def runs(self) -> tuple[str, ...]: ...


# What an engine generates by, by the names of settings and reported terms; and values that turn it off.
OTHER_ROLLOUTS = {
    "quantises": re.compile(r"(^|\.)(quantisation|quantization|kv_cache_dtype)$"),
    "drafts tokens": re.compile(r"speculative|(^|[._])mtp[._]enable_rollout$"),
}
_NOT_SET = (UNKNOWN, NOT_GIVEN, "none", "None", "null", "auto", "false", "False", "0", "", "{}")


@dataclass(frozen=True, eq=False)
class Term:
    """One row of the table; `values` has one value for each place."""

    name: str
    places: Sequence[TermPlace]
    values: Sequence[object]
    verdict: Equality
    why: str
    source: str
    kind: str = "setting"
    besides: tuple[str, ...] = ()
    """The arms that a finding on it is not about."""

    @property
    def mixed(self) -> tuple[str, ...]:
        """The arms whose runs of one configuration differ."""
        return mixed_arms(self.places, self.values) if self.verdict == "mixed" else ()

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms whose value is known."""
        return tuple(dict.fromkeys(place.arm for some in self.groups().values() for place in some))

    def groups(self, text: Callable[[object], str] | None = None) -> dict[str, list[TermPlace]]:
        """The places by value; those with an unknown value are left out."""
        found: dict[str, list[TermPlace]] = {}
        for place, value in zip(self.places, self.values, strict=True):
            if value != UNKNOWN:
                found.setdefault((text or as_shown)(value), []).append(place)
        return found

    @property
    def sides(self) -> tuple[tuple[str, ...], ...]:
        """The arms of each value, if values differ and at least two arms share one; else empty."""
        sides = tuple(tuple(dict.fromkeys(place.arm for place in some)) for some in self.groups().values())
        return sides if len(sides) > 1 and any(len(side) > 1 for side in sides) else ()

    def in_words(self, text: Callable[[object], str] | None = None) -> str:
        """`value in arm, arm; value in arm`."""
        return "; ".join(f"{value} in {self._names(some)}" for value, some in self.groups(text).items())

    def _names(self, some: Sequence[TermPlace]) -> str:
        """The arms by name; with its own factors, or its runs, where only some of an arm's places are included."""
        others = [place for place in self.places if place not in some]
        arms, labels = {place.arm for place in others}, {place.label for place in others}
        names = (
            f"{place.label} ({join_first(place.runs, 2)})"
            if place.label in labels
            else place.label
            if place.arm in arms
            else place.arm
            for place in some
        )
        return ", ".join(dict.fromkeys(names))

    def found(self) -> Term:
        """The term without the arms that a finding on it is not about."""
        kept = [(place, value) for place, value in zip(self.places, self.values, strict=True)]
        kept = [(place, value) for place, value in kept if place.arm not in self.besides]
        return replace(self, places=[place for place, _ in kept], values=[value for _, value in kept])

    @property
    def row(self) -> LedgerRow:
        """The term as preflight.json has it."""
        texts: dict[str, dict[str, list[str]]] = {}
        for place, value in zip(self.places, self.values, strict=True):
            texts.setdefault(place.arm, {}).setdefault(as_shown(value), []).extend(place.runs)
        values = {
            arm: SEVERAL.join(
                f"{text} ({join_first(runs, _MOST_RUNS)})" if arm in self.mixed else text for text, runs in some.items()
            )
            for arm, some in texts.items()
        }
        return LedgerRow(self.name, values, self.verdict, self.why, self.source, self.mixed)


def as_shown(value: object) -> str:
    """A value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _known(places: Sequence[TermPlace], values: Sequence[object]) -> dict[tuple[str, str, str], set[str]]:
    """The known values of an arm with its own factors at a point."""
    found: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for place, value in zip(places, values, strict=True):
        if value != UNKNOWN:
            # A setting that is null and one that a configuration lacks are the same.
            found[place.arm, place.label, place.point].add(NONE if value is None else as_shown(value))
    return found


def mixed_arms(places: Sequence[TermPlace], values: Sequence[object]) -> tuple[str, ...]:
    """The arms whose runs of one configuration have several values."""
    return tuple(dict.fromkeys(arm for (arm, *_), some in _known(places, values).items() if len(some) > 1))


def state(places: Sequence[TermPlace], values: Sequence[object]) -> Equality:
    """Whether places are equal in a value. A swept factor is no difference between arms."""
    at_point: dict[str, set[str]] = defaultdict(set)
    for (_, _, point), some in _known(places, values).items():
        if len(some) > 1:
            return "mixed"
        at_point[point] |= some
    if any(len(some) > 1 for some in at_point.values()):
        return "different"
    return "unverifiable" if UNKNOWN in values else "equal"


def compared(
    name: str,
    places: Sequence[TermPlace],
    values: Sequence[object],
    source: str,
    equal: str = "the same in all arms",
    different: str = "the values differ",
    kind: str = "setting",
) -> Term:
    """A term by its values alone."""
    verdict = state(places, values)
    lack = dict.fromkeys(place.arm for place, value in zip(places, values, strict=True) if value == UNKNOWN)
    why: Mapping[str, str] = {
        "equal": equal,
        "different": different,
        "mixed": "runs of one arm differ in it",
        "unverifiable": f"its value in {join_first(list(lack), 4)} is unknown",
    }
    return Term(name, places, values, verdict, why[verdict], source, kind)


def equivalent(term: Term, why: str) -> Term:
    """A term whose values differ without effect, unless one of them is unknown."""
    if term.verdict not in ("different", "mixed"):
        return term
    if UNKNOWN in term.values:
        return replace(term, verdict="unverifiable", why="not every arm's value is known")
    return replace(term, verdict="equivalent", why=why)


def mixed_findings(terms: Iterable[Term]) -> Iterator[Finding]:
    """A finding for each arm whose runs differ: no number of it stands for one configuration."""
    of_arm: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in (term.row for term in terms if term.verdict == "mixed"):
        for arm in row.mixed:
            of_arm[arm].append(row)
    for arm, rows in of_arm.items():
        # Settings first: what follows from them says the same once more.
        rows = sorted(rows, key=lambda row: row.setting.startswith("workload."))
        each = [f"{row.setting}: {row.values[arm]}" for row in rows]
        yield Finding(
            "unequal",
            "mixed-terms",
            (arm,),
            f"{count_of(len(rows), 'term')} differ{'s' * (len(rows) == 1)} between runs of {arm} "
            f"({join_first(each, MOST_LISTED)})",
            "the arm's runs are not repetitions of one configuration",
            "the runs' own configurations",
            "runs of one configuration, or an arm for each",
            scope=f"with unequal runs of {arm}",
            settle=f"runs of {arm} on one configuration",
        )


def findings_of(terms: Iterable[Term]) -> Iterator[Finding]:
    """A finding for each term that differs between arms and makes them unequal by itself."""
    for term in (term.found() for term in terms):
        if term.verdict == "different" and term.why != COMPARED and (rule := UNEQUAL.get(term.name)):
            what = f"{term.name}: {term.in_words()}"
            yield Finding("unequal", rule.code, term.arms, what, rule.why, term.source, rule.change, sides=term.sides)


def other_rollouts(preflight: Preflight | None, arms: Sequence[str]) -> dict[str, str]:
    """Which of these arms' engines generate by other arithmetic than the model's, and how, by their terms."""
    found: dict[str, list[str]] = defaultdict(list)
    for how, names in OTHER_ROLLOUTS.items():
        for row in preflight.ledger if preflight is not None else ():
            for arm, value in row.values.items():
                if names.search(row.setting) and value not in _NOT_SET and arm in arms and how not in found[arm]:
                    found[arm].append(how)
    return {arm: " and ".join(how) for arm, how in found.items() if how}


def in_words(preflight: Preflight | None, arms: Sequence[str], rollouts: Mapping[str, str]) -> str:
    """How many of the terms of two arms are unequal, for the verdict; "" where a caveat says more.

    `rollouts` are the arms whose engine quantises or drafts (`other_rollouts`): never called equal.
    """
    if preflight is None or preflight.unequal(arms) or preflight.between(arms).rows("mixed"):
        return ""
    terms = preflight.between(arms)
    unknown = len(terms.rows("unverifiable"))
    verified = len(terms.ledger) - unknown
    different = sum(row.why != COMPARED for row in terms.rows("different"))
    if not verified:
        return ""
    if different:
        return f"{different} different of {count_of(verified, 'verified setting')}"
    counted = f"0 unequal of {count_of(verified, 'verified setting' if unknown else 'setting')}"
    if rollouts:
        return f"{counted}, but {' and '.join(f'{arm} {how}' for arm, how in rollouts.items())}"
    return counted if unknown else f"terms equal ({counted})"
