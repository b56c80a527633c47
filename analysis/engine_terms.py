"""Compares what engines run with: by their options before a run, and as they report it at their start (engines/).

An engine's own choice is unknown until it starts. Terms that a difference cannot change the speed by are equivalent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.terms import Term, TermPlace, compared, equivalent, state
from common.findings import COMPARED, UNKNOWN
from engines import Engine, reported

_ABOUT = 0.05
"""Caches of sizes that differ by less are one: free memory varies a little between starts."""


@dataclass(frozen=True)
class EnginePlace:
    """What is known of one place's engine: its terms, and the work of one engine in a step (None where unknown)."""

    place: TermPlace
    engine: Engine
    terms: Mapping[str, object]
    sequences: int | None = None
    prompt: int | None = None
    """The longest prompt in tokens."""
    longest: int | None = None
    """The longest prompt with its response in tokens."""


def engine_terms(places: Sequence[EnginePlace], source: str) -> Iterator[Term]:
    """One term for each name of engines/reported.py.

    Where no place tells it, it is a term only between engines: of one engine the settings are terms themselves.
    """
    several = len({one.engine.name for one in places}) > 1
    for name in reported.TERMS:
        values = [one.terms.get(name, UNKNOWN) for one in places]
        if several or any(value != UNKNOWN for value in values):
            values = _about_equal(values) if name == reported.CACHE else values
            term = compared(name, [one.place for one in places], values, source, kind="engine")
            yield _judged(term, places)


def _about_equal(values: Sequence[object]) -> list[object]:
    """The values, in which a number close to an earlier one is that one."""
    found: list[object] = []
    for value in values:
        near = (one for one in found if isinstance(one, int) and isinstance(value, int))
        found.append(next((one for one in near if abs(one - value) <= _ABOUT * one), value))  # type: ignore[operator]
    return found


def _judged(term: Term, places: Sequence[EnginePlace]) -> Term:
    is_share = any(isinstance(value, str) and value.startswith("in ") for value in term.values)
    if term.verdict == "unverifiable" or (is_share and term.verdict == "different"):
        lacks = f"{term.why}: " if term.verdict == "unverifiable" and term.arms else ""
        return replace(term, verdict="unverifiable", why=f"{lacks}an engine tells it when it starts")
    if term.verdict != "different":
        return term
    if why := _no_effect(term.name, places):
        return equivalent(term, why)
    # An engine without such an option is so: that is what is compared.
    besides = tuple(one.place.arm for one in places if term.name not in one.engine.options)
    others = replace(term, besides=besides).found()
    if not besides or state(others.places, others.values) == "different":
        return replace(term, besides=besides)
    if UNKNOWN in others.values:
        return replace(term, verdict="unverifiable", why="an engine tells it when it starts")
    return replace(term, why=COMPARED)


def _no_effect(name: str, places: Sequence[EnginePlace]) -> str:
    """Why a difference cannot change the speed, by the work of one engine in a step; "" if it can."""
    sequences = max((one.sequences or 0 for one in places), default=0)
    if not sequences or any(one.sequences is None for one in places):
        return ""
    needs = {
        reported.GRAPH_SIZE: (
            sequences,
            f"an engine has at most {sequences} sequences in a step: every batch is covered",
        ),
        reported.SEQUENCES: (sequences, f"an engine has at most {sequences} sequences in a step: none waits"),
    }
    if all(one.longest for one in places):
        tokens = max(sequences * (one.longest or 0) for one in places)
        needs[reported.CACHE] = tokens, f"all sequences of a step have room at full length ({tokens:,} tokens)"
    if all(one.prompt for one in places):
        tokens = max(sequences * (one.prompt or 0) for one in places)
        needs[reported.PREFILL] = tokens, f"one pass reads all prompts of a step ({tokens:,} tokens)"
    least, why = needs.get(name, (0, ""))
    return why if least and all(_at_least(one.terms.get(name), least) for one in places) else ""


def _at_least(value: object, least: int) -> bool:
    return value == reported.NO_LIMIT or (isinstance(value, int) and value >= least)
