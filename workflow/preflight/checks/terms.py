"""Compares the terms of runs that were trained elsewhere: what is said of each, against the others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from common.findings import Finding
from trainers.cases import Case, differing
from workflow.preflight.import_settings import Untold

# What is said of an imported run, and the ledger's name for it, as the workload's rows have it.
FACTS: Mapping[str, str] = {
    **{name: f"workload.{name}" for name in ("gpu", "nodes", "gpus_per_node", "batch_size", "max_response_length")},
    "model": "workload.model",
    "tensor_parallel": "GPUs of one engine (tensor parallel)",
}
# A fact whose value several settings make.
_MADE_OF: Mapping[str, tuple[str, ...]] = {"batch_size": ("prompts", "num_generations")}
_WHY: Mapping[str, str] = {
    "gpu": "another GPU has another speed, whatever the engine",
    "nodes": "other nodes are other machines and another network",
    "gpus_per_node": "more GPUs do the same work sooner",
    "batch_size": "a step of more completions is more work",
    "max_response_length": "where longer responses are allowed, a step waits longer for its longest",
    "model": "another model takes another time for each token",
    "tensor_parallel": "how many GPUs share one engine decides how fast a response is written and how many run at once",
}


def fact_of(name: str, one: Case | Untold) -> object:
    """What is known of a run under one of FACTS; None where nobody says it."""
    if isinstance(one, Untold):
        return one.words.get(name)
    if name == "tensor_parallel":
        return one.tensor_parallel
    value = one.workload.get(name)
    return value.get("source") if name == "model" and isinstance(value, dict) else value


def terms_findings(cases: Sequence[Case], untold: Sequence[Untold]) -> Iterator[Finding]:
    """A finding for every fact that differs between arms at one point, some of which are imported."""
    runs: list[Case | Untold] = [*cases, *untold]
    if not untold and not any(case.imported for case in cases):
        return
    # With settings of every arm the finding on these has them; of whole systems it speaks of no setting.
    told = not untold and len({case.release for case in cases}) == 1
    spoken = set(differing([case.settings for case in cases])) if told else set()
    for name, setting in FACTS.items():
        by_value: dict[str, list[str]] = {}
        for one in runs:
            if (value := fact_of(name, one)) is not None:
                text = value if isinstance(value, str) else json.dumps(value, default=str)
                arms = by_value.setdefault(text, [])
                arm = one.arm if isinstance(one, Case) else one.case.arm
                arms += [] if arm in arms else [arm]
        # Where it differs because these do, another finding says so already.
        made_of = {case.trainer.key(word) for case in cases for word in _MADE_OF.get(name, (name,))}
        if len(by_value) < 2 or spoken & made_of:
            continue
        yield Finding(
            "unequal",
            "import-differs",
            tuple(dict.fromkeys(arm for arms in by_value.values() for arm in arms)),
            f"{setting}: " + "; ".join(f"{value} in {', '.join(arms)}" for value, arms in by_value.items()),
            _WHY[name],
            "the experiment's workload and imports",
            "runs that share it; or, if what is said of them is wrong, arms.<arm>.import",
        )
