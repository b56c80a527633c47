"""Tests each user reward function on three rows of the data, and checks reward models by their files."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from common.errors import UserError
from common.findings import Finding
from node.built_in_rewards import Response
from node.dataset import read_examples
from node.hub import source_kind
from node.own_reward import RewardProblem, RewardProgram
from node.reward_model import context_length, reward_model_problem
from node.rewards import row_of
from trainers.cases import Case
from workflow.config.imports import local_path
from workflow.config.plan import Plan
from workflow.preflight.texts import finding

_SOURCE = "docs/rewards.md"
# A right answer, no answer that was cut off, and an empty text.
_TEXTS = ("<think>So it is.</think><answer>{}</answer>", "I do not know.", "")
_LOAD_S = 60.0


def own_reward_findings(plan: Plan) -> Iterator[Finding]:
    """Problems of a plan's user reward functions, for all arms that train with them."""
    arms: dict[str, dict[str, None]] = {}
    for run in plan.runs.values():
        workload = run.spec["workload"]
        for reward in [one for one in workload.get("rewards", ()) if "code" in one]:
            request = {**reward, "weight": 1.0, "data": workload["data"]}
            arms.setdefault(json.dumps(request, sort_keys=True), {})[run.spec["arm"]] = None
    for text, users in arms.items():
        for one in _findings(text):
            yield replace(one, arms=tuple(users))


@functools.cache
def _findings(text: str) -> tuple[Finding, ...]:
    """What is wrong with a function, without the arms."""
    reward = json.loads(text)
    try:
        program = RewardProgram(reward, load_s=_LOAD_S)
    except RewardProblem as problem:
        if problem.missing or problem.late:
            return (finding("reward-untried", what=problem),)
        return (finding("reward-file", what=problem, file=reward["source"]),)
    try:
        return tuple(_of_calls(program, reward))
    finally:
        program.close()


def _of_calls(program: RewardProgram, reward: Mapping[str, Any]) -> Iterator[Finding]:
    """What is wrong with the values of three typical completions, together and each alone."""
    responses = _responses(reward["data"])
    if not responses:
        what = f"{program.where} was loaded but not called: the data is not on this machine"
        yield finding("reward-untried", what=what)
        return
    alone: list[float | None] = []
    try:
        for response in responses:
            alone += _values(program, [response])
        together = alone if program.one_by_one else _values(program, responses)
    except RewardProblem as problem:
        if problem.missing:
            yield finding("reward-untried", what=problem)
            return
        shown = f", for the completion {response.text!r} to row {len(alone)} of the data" * (
            len(alone) < len(responses)
        )
        change = f"correct {reward['source']}; return None where there is no value"
        if problem.late:
            change = f"make {program.name} faster, or raise timeout_s of this reward ({program.limit_s:g} s)"
        elif reward.get("signature") is None:
            change += f"; or give it the signature of its trainer ({_SOURCE}): completions are {program.form}"
        yield finding("reward-fails", what=f"{problem}{shown}", tested=len(responses), change=change)
        return
    if together != alone:
        where, tested = program.where, len(responses)
        yield finding("reward-by-batch", where=where, together=together, alone=alone, tested=tested)


def _values(program: RewardProgram, responses: Sequence[Response]) -> list[float | None]:
    values: list[float | None] = []
    for value in program.call(responses):
        if isinstance(value, RewardProblem):
            raise value
        values.append(value)
    return values


def _responses(data: Mapping[str, Any]) -> list[Response]:
    """Completions to the data's first rows; none if they are on a hub or unreadable here (the job reports it)."""
    if source_kind(data["source"]) == "hub":
        return []
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            examples = read_examples({**data, "rows": len(_TEXTS)})
    except UserError:
        return []
    return [
        Response(
            text=text.format(example["reward_model"]["ground_truth"]),
            tokens=[3, 1, 4, 1, 5][: 5 * bool(text)],
            complete="know" not in text,
            prompt=example["prompt"],
            row=row_of(example),
        )
        for text, example in zip(_TEXTS, examples, strict=True)
    ]


def reward_models(case: Case) -> Iterator[Finding]:
    """Local reward models that are no one-label sequence classifiers, or read fewer tokens than a text may have."""
    for reward in case.workload.get("rewards") or ():
        if "model" not in reward:
            continue
        if source_kind(reward["model"]) != "local" or not (folder := local_path(reward["model"])).exists():
            continue  # preparing the inputs reports a missing model
        if problem := reward_model_problem(folder):
            yield finding("reward-model", case.arm, what=problem)
            continue
        limits = [one for one in (reward["max_length"], context_length(folder)) if one is not None]
        if limits and case.longest > min(limits):
            name, longest = reward["name"], case.longest
            yield finding("reward-model-length", case.arm, name=name, limit=min(limits), longest=longest)
