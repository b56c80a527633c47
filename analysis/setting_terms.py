"""Makes the terms of runs' settings: the engines' options, the workload, variables, packages, and the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath

from analysis.engine_terms import EnginePlace, engine_terms
from analysis.terms import ALL_SETTINGS, HARMLESS, STATED, TENSOR_PARALLEL, Term, compared, equivalent
from common.findings import COMPARED, EQUALITIES, NONE, NOT_GIVEN, UNKNOWN
from trainers.cases import Case
from trainers.registry import trainers

# The packages that compute. The engines' own packages are not listed: they are what is compared.
PACKAGES = (
    *("torch", "triton", "transformers", "flash-attn", "nvidia-nccl-cu12", "nvidia-cudnn-cu12"),
    *("ray", "numpy", "trl", "verl"),
)
NO_EFFECT = "a place, a name, a tracker, a seed, or a limit that no sequence reaches"


def distinct(cases: Iterable[Case]) -> list[Case]:
    """One case for the runs of an arm at one point that have the same terms."""
    found: dict[str, Case] = {}
    for case in cases:
        settings = {key: value for key, value in case.settings.values.items() if not is_bookkeeping(key)}
        # A place counts only by whether it is set.
        settings |= {key: value is None for key, value in settings.items() if key.endswith("_dir")}
        facts = [case.arm, case.label, case.point, case.place, case.unknown, case.overrides if settings else ()]
        known = [settings, case.workload, case.env, case.stated, case.pins.packages, case.pins.accelerator]
        key = json.dumps([*facts, *known], sort_keys=True, default=str)
        found[key] = replace(found[key], runs=(*found[key].runs, *case.runs)) if key in found else case
    return list(found.values())


def table(cases: Sequence[Case]) -> list[Term]:
    """All terms: of the engines, common names, workload, variables and packages, then every other setting.

    Those in which arms are not equal come first.
    """
    known, unknown = [case for case in cases if not case.unknown], [case for case in cases if case.unknown]
    named: list[Term] = []
    if known:
        named = [*_engine_terms(known, cases), *_common_terms(known, cases), *_declared_terms(cases)]
    rest = list(_setting_terms(known, cases))
    if unknown:
        # The settings of a single arm are no comparison.
        rest = [term for term in rest if len(term.arms) > 1]
        stated = stated_terms(cases)
        named = [_all_unknown(cases), *stated, *(term for term in named if term.name not in STATED)]
    uneven = [term for term in rest if term.verdict != "equal"]
    equal = [term for term in rest if term.verdict == "equal"]
    return [*sorted([*named, *uneven], key=lambda term: EQUALITIES.index(term.verdict)), *equal]


def _all_unknown(cases: Sequence[Case]) -> Term:
    """One term for all unknown settings, with the reason why they are unknown."""
    why = "; ".join(dict.fromkeys(case.unknown for case in cases if case.unknown))
    values = [UNKNOWN if case.unknown else "as below" for case in cases]
    name = ALL_SETTINGS + " that are not in its command" * any(case.settings.given for case in cases)
    return Term(name, cases, values, "unverifiable", why, "the imported run's source", "unknown")


def setting_of(key: str, cases: Sequence[Case]) -> list[object]:
    """A setting's value in each case.

    Where commands of one release are all that is known, an option that one of them lacks is at its default there.
    """
    commands = all(case.of_command for case in cases) and len({case.release for case in cases}) == 1

    def without(case: Case) -> str:
        if commands and key not in case.settings.given:
            return NOT_GIVEN
        return UNKNOWN if case.unknown else NONE

    return [case.settings.values.get(key, without(case)) for case in cases]


def _engine_terms(known: Sequence[Case], cases: Sequence[Case]) -> Iterator[Term]:
    """What the engines run with, as far as options tell it; of one engine the settings are terms themselves."""
    if len({case.engine.name for case in known}) > 1:
        yield from engine_terms([_engine_place(case) for case in cases], "the engines' own options")


def _engine_place(case: Case) -> EnginePlace:
    terms = {} if case.unknown else case.engine_terms
    lengths = [case.workload.get(name) for name in ("max_prompt_length", "max_response_length")]
    prompt, response = (length if isinstance(length, int) else None for length in lengths)
    sequences = case.per_replica if case.workload.get("batch_size") else None
    return EnginePlace(case, case.engine, terms, sequences, prompt, prompt + response if prompt and response else None)


def _keys(cases: Sequence[Case], part: Callable[[Case], Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(key for case in cases for key in part(case)))


def _declared_terms(cases: Sequence[Case]) -> Iterator[Term]:
    """The workload, the variables and the packages."""
    for key in _keys(cases, lambda case: case.workload):
        # An import need not state all of it.
        lacking = [case.unknown or (case.imported and key not in case.workload) for case in cases]
        values = [UNKNOWN if lacks else case.workload.get(key) for case, lacks in zip(cases, lacking, strict=True)]
        same, different = "one workload for all arms", "the arms do not do the same work"
        yield compared(f"workload.{key}", cases, values, "the experiment's workload", same, different, "workload")
    for name in _keys([case for case in cases if not case.unknown], lambda case: case.env):
        texts = [case.env.get(name, UNKNOWN if case.unknown else "not set") for case in cases]
        same = "the same in all arms; a finding reports it if some arms pay more for it"
        different = "only some arms' processes have it"
        term = compared(f"env.{name}", cases, texts, "the experiment's env or the setup script", same, different, "env")
        yield equivalent(term, "it does not affect speed") if name in HARMLESS else term
    for package in PACKAGES:
        versions = [case.pins.packages.get(package) for case in cases]
        if all(version for version, case in zip(versions, cases, strict=True) if not case.unknown):
            values = [version or UNKNOWN for version in versions]
            lock, different = "envs/<stack>/requirements.lock", "the stacks pin different releases"
            yield compared(
                f"package {package}", cases, values, lock, "the same pin in all stacks", different, "package"
            )


def _common_names(cases: Sequence[Case]) -> list[str]:
    """The names (`Trainer.keys`) under which different trainers' settings are compared, beside the workload's."""
    of_all = [case.trainer.keys for case in cases] if len({case.trainer.name for case in cases}) > 1 else []
    names = dict.fromkeys(name for keys in of_all for name in keys if all(name in other for other in of_all))
    stated = {key for case in cases for key in case.workload}
    return [name for name in names if name not in ("engine", "seed", "server", "prompts") and name not in stated]


def _common_terms(known: Sequence[Case], cases: Sequence[Case]) -> Iterator[Term]:
    """The settings of different trainers that have a common name."""
    for name in _common_names(known):
        found = [case.trainer.lookup(case.settings.values, name) for case in cases]
        keys = ", ".join(dict.fromkeys(case.trainer.key(name) for case in known))
        values = [UNKNOWN if value is None else value for value in found]
        yield compared(name, cases, values, keys, "the same in all trainers", "the trainers' settings differ", "common")


def _setting_terms(known: Sequence[Case], cases: Sequence[Case]) -> Iterator[Term]:
    """Every setting that has no common name, and that is no engine's option with a term of its own."""
    described = {key for name in _common_names(known) for case in known for key in case.trainer.keys[name]}
    if len({case.engine.name for case in known}) > 1:
        # An engine's section may be there, and empty.
        described |= {prefix.removesuffix(".") for prefix in _own_options(known)}
        described |= {key for case in known for key in case.settings.values if option_term(key, case)}
    source = _source([case for case in cases if case.settings.values])
    for key in _keys(cases, lambda case: case.settings.values):
        if key in described:
            continue
        term = compared(key, cases, setting_of(key, cases), source, different="the configuration sets it so")
        if engines_own(key, cases) and (term.verdict != "equal" or any(key in case.settings.given for case in cases)):
            term = _own_option(term, cases)
        elif term.verdict in ("different", "mixed"):
            term = _judged(term, cases)
        yield term


def _own_option(term: Term, cases: Sequence[Case]) -> Term:
    """One engine's own option: shared options may set it in both arms, but only that engine receives it."""
    if names_the_engine(term.name, cases):
        return replace(term, why=COMPARED)
    if is_bookkeeping(term.name):
        return equivalent(term, NO_EFFECT)
    return replace(term, verdict="unverifiable", why="an engine's own option: the other has none of that name")


def _source(cases: Sequence[Case]) -> str:
    if all(case.of_command for case in cases):
        return "the commands in the runs' logs"
    if not all(case.settings.composed for case in cases):
        return "the experiment's options; not composed yet"
    return "the runs' own configurations" if all(case.imported for case in cases) else "composed in the stack"


def _judged(term: Term, cases: Sequence[Case]) -> Term:
    """A setting of different values, with the verdict on their effect."""
    if names_the_engine(term.name, cases):
        return replace(term, why=COMPARED)
    if not matters(term.name, cases):
        return equivalent(term, NO_EFFECT)
    if same_file_names(term.name, term.values):
        return replace(term, verdict="unverifiable", why="one file name in several folders: its content may differ")
    if term.verdict == "mixed":
        return term
    if len({case.release for case in cases}) > 1 and not all(term.name in case.settings for case in cases):
        return replace(term, verdict="unverifiable", why="not every arm's trainer has this setting")
    return term


def stated_terms(cases: Sequence[Case]) -> list[Term]:
    """What imports state of their runs, also of those whose settings are unknown."""
    source, different = "the experiment's workload and imports", "the arms did not run under the same terms"
    return [
        compared(
            name, cases, [_stated(name.removeprefix("workload."), case) for case in cases], source, different=different
        )
        for name in STATED
    ]


def _stated(name: str, case: Case) -> object:
    if case.unknown:
        value = case.stated.get("tensor_parallel" if name == TENSOR_PARALLEL else name)
    else:
        value = case.tensor_parallel if name == TENSOR_PARALLEL else case.workload.get(name)
    value = value.get("source") if isinstance(value, dict) else value
    return UNKNOWN if value is None else value


def _own_options(cases: Iterable[Case]) -> tuple[str, ...]:
    """The prefixes of settings that are an engine's own options."""
    return tuple(dict.fromkeys(prefix for case in cases if (prefix := _own_prefix(case))))


def _own_prefix(case: Case) -> str:
    return case.trainer.engine_prefix(case.engine.name, case.version)


def own_option(key: str, case: Case) -> str:
    """An engine's own option by the engine's name; "" for any other setting."""
    prefix = _own_prefix(case)
    return key.removeprefix(prefix) if prefix and key.startswith(prefix) else ""


def option_term(key: str, case: Case) -> str:
    """The term of engines/reported.py that an engine's own option decides; "" without one."""
    name = own_option(key, case).partition(".")[0]
    return next((term for term, options in case.engine.options.items() if name in options), "")


def engines_own(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting is one engine's own option, in a comparison of several engines."""
    return len({case.engine.name for case in cases}) > 1 and key.startswith(_own_options(cases))


def names_the_engine(key: str, cases: Sequence[Case]) -> bool:
    """Whether a setting selects the engine, or holds its name."""
    switches = {one for case in cases for one in case.trainer.keys.get("engine", ())}
    return key in switches or all(case.settings.get(key) == case.engine.name for case in cases)


@cache
def is_bookkeeping(key: str) -> bool:
    """Whether a setting is a name, a tracker, a place or a seed, by any trainer's rules."""
    return key.endswith("seed") or any(key.rpartition(".")[2] in one.bookkeeping for one in trainers())


def matters(key: str, cases: Sequence[Case]) -> bool:
    """Whether a difference in a setting can change the work."""
    if is_bookkeeping(key):
        return False
    # What is written into a folder takes time; which folder it is does not matter.
    return not key.endswith("_dir") or any(case.settings.get(key) is None for case in cases)


def same_file_names(key: str, values: Sequence[object]) -> bool:
    """Whether a setting names a file by one name in several folders: only its content could tell."""
    return key.endswith(".path") and len({PurePosixPath(str(value)).name for value in values}) == 1
