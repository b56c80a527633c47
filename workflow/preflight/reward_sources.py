"""Tests each user reward function on three rows of the data, and checks reward models by their files."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.findings import Finding, Level
from node.built_in_rewards import Response
from node.dataset import arithmetic_rows, conversation, ground_truths, value_at
from node.hub import source_kind
from node.own_reward import RewardProblem, RewardProgram
from node.own_reward_signatures import SIGNATURES
from node.reward_model import context_length, reward_model_problem
from trainers.cases import Case
from workflow.config.imports import local_path
from workflow.config.plan import Plan

_SOURCE = "docs/rewards.md"
_MODELS = f"{_SOURCE}#a-reward-model"
_ROWS = 3
_LOAD_S = 60.0


def own_reward_findings(plan: Plan) -> Iterator[Finding]:
    """Problems of a plan's user reward functions, for all arms that train with them."""
    arms: dict[str, dict[str, None]] = {}
    for run in plan.runs.values():
        for reward in run.spec["workload"].get("rewards", ()):
            if "code" in reward:
                keys = ("source", "code", "function", "options", "columns", "signature", "timeout_s")
                request = {key: reward.get(key) for key in keys} | {"data": run.spec["workload"]["data"]}
                arms.setdefault(json.dumps(request, sort_keys=True), {})[run.spec["arm"]] = None
    for request_text, users in arms.items():
        for one in _problems(request_text):
            yield Finding(one.level, one.code, tuple(users), one.what, one.why, _SOURCE, one.change)


@dataclass(frozen=True)
class _Problem:
    level: Level
    code: str
    what: str
    why: str
    change: str
    unfit: bool = False
    """Whether the function may expect other arguments."""


@functools.cache
def _problems(request_text: str) -> tuple[_Problem, ...]:
    """What is wrong with a function, or unclear."""
    reward = json.loads(request_text)
    try:
        program = RewardProgram(reward, load_s=_LOAD_S)
    except RewardProblem as error:
        return (_load_problem(error, reward),)
    try:
        return tuple(_problems_of(program, reward))
    finally:
        program.close()


def _load_problem(error: RewardProblem, reward: Mapping[str, Any]) -> _Problem:
    source, where = reward["source"], f"{reward['source']}: {reward['function']}"
    if error.missing:
        return _untried(where, error.missing)
    if error.late:
        why = "the stack has more time for it, but nothing calls it before the first step"
        return _Problem("odd", "reward-untried", error.problem, why, f"nothing; or load less when {source} is imported")
    change, known = f"correct {source}", _data_columns(reward["data"])
    if error.parameters and known is not None:
        listed = list(dict.fromkeys([*(reward["columns"] or ()), *error.parameters]))
        change = f"add columns: [{', '.join(listed)}] to workload.data"
        if unknown := [name for name in error.parameters if name not in known]:
            change = f"give it as an option, or as a column: the data has no {unknown[0]}; it has {', '.join(known)}"
    return _Problem("impossible", "reward-file", error.problem, "no run can be scored with it", change)


def _untried(where: str, missing: str) -> _Problem:
    why = "the stack loads it before any job is queued, but nothing calls it before the first step"
    change = "nothing; or import the package where it is used, so that the rest can be tested here"
    return _Problem("odd", "reward-untried", f"{where} imports {missing}, which this Python lacks", why, change)


def _problems_of(program: RewardProgram, reward: Mapping[str, Any]) -> Iterator[_Problem]:
    known, answer = _data_columns(reward["data"]) or (), reward["data"].get("answer_column")
    if shadowed := [name for name in program.answers if name in known and name != answer]:
        listed = ", ".join([*(reward["columns"] or ()), *shadowed])
        yield _Problem(
            "impossible",
            "reward-file",
            f"{program.where} has a parameter {shadowed[0]!r}, which the data has as a column beside its answers",
            f"it would get the answers ({answer}), and in its own trainer it gets the column",
            f"add columns: [{listed}] to workload.data and signature: {program.signature} to this reward",
        )
        return
    rows = first_rows(reward["data"])
    if rows is None:
        what = f"{program.where} was loaded but not called: the data is not on this machine"
        change = "use a local data file"
        yield _Problem("odd", "reward-untried", what, "an error in it shows at the first step", change)
        yield from _unclear(program, program.others)
        return
    responses = responses_to(rows)
    problem = _call_problem(program, responses, reward["source"])
    others = [one for one in program.others if (problem.unfit if problem else program.takes_all)]
    tried = {other: values for other in others if (values := _values_as(other, reward, responses))}
    if problem is None:
        values, _ = program.call(responses)
        yield from _unclear(program, [one for one in tried if tried[one] != values or len(set(values)) == 1])
        return
    for other in list(tried)[:1]:
        change = f"add signature: {other} to this reward: it scores them so ({_passed(other)}); or {problem.change}"
        problem = replace(problem, change=change)
    yield problem


def _values_as(signature: str, reward: Mapping[str, Any], responses: Sequence[Response]) -> list[float | None]:
    """The values of a function with another signature; none if it fails."""
    try:
        program = RewardProgram({**reward, "signature": signature}, load_s=_LOAD_S)
    except RewardProblem:
        return []
    try:
        values, problem = program.call(responses)
        return [] if problem else values
    finally:
        program.close()


def _passed(signature: str) -> str:
    return f"completions are {SIGNATURES[signature].completions}"


def _unclear(program: RewardProgram, others: Sequence[str]) -> Iterator[_Problem]:
    """How a function is called that other trainers could call, too, with another form of completions."""
    for other in others:
        if program.takes_all and _passed(other) != _passed(program.signature):
            what = f"{program.where} fits two signatures; it is called as {program.signature}'s: "
            yield _Problem(
                "odd",
                "reward-signature",
                what + _passed(program.signature),
                "its parameters do not show for which trainer it was written",
                f"nothing; or add signature: {other} to this reward ({_passed(other)}), which makes a new run",
            )


def _call_problem(program: RewardProgram, responses: Sequence[Response], source: str) -> _Problem | None:
    values, problem = program.call(responses)
    what, alone = str(problem or ""), []
    for at, response in enumerate(responses):
        value, problem_alone = program.call([response])
        if problem_alone:
            problem = problem_alone
            what = f"{problem}, for the completion {response.text!r} to row {at} of the data"
            break
        alone += value
    if problem and problem.missing:
        return _untried(program.where, problem.missing)
    if problem:
        why = f"such a completion would have no value in training; {len(responses)} were tested"
        change = f"correct {source}; return None where there is no value"
        if problem.late:
            change = f"make {program.name} faster, or raise timeout_s of this reward ({program.limit_s:g} s)"
        return _Problem("impossible", "reward-fails", what, why, change, unfit=not problem.late)
    if values != alone:
        what = f"{program.where} gives {values} for {len(responses)} completions together, and {alone} for each alone"
        why = "trainers differ in how many they pass (verl: one): arms would learn from different rewards"
        return _Problem("odd", "reward-by-batch", what, why, "score each completion by itself, without randomness")
    return None


def responses_to(rows: Sequence[Mapping[str, Any]]) -> list[Response]:
    """Three typical completions: a right answer, no answer, and an empty text."""
    texts = ["<think>So it is.</think><answer>{}</answer>", "I do not know.", ""]
    return [
        Response(
            text=texts[at % len(texts)].format(row["ground_truth"]),
            tokens=[3, 1, 4, 1, 5][: 5 * (at % len(texts) < 2)],
            complete=at % len(texts) != 1,
            prompt=conversation(row["question"]),
            row={key: value for key, value in row.items() if key != "question"},
        )
        for at, row in enumerate(rows)
    ]


def first_rows(data: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The data's first rows; None if they are on a hub or unreadable here (the job reports the problem)."""
    kind = source_kind(data["source"])
    if kind == "builtin":
        found: list[dict[str, Any]] | None = list(arithmetic_rows(_ROWS, int(data["seed"])))
        question, answer = "question", "answer"
    else:
        found = _first_of_file(local_path(data["source"])) if kind == "local" else None
        question, answer = data["prompt_column"], data["answer_column"]
    try:
        truths = ground_truths(
            [value_at(row, answer) for row in found or ()], data["answer_after"], data.get("answer_commas", "")
        )
        return [
            {
                **{name: row[name] for name in data.get("columns") or ()},
                "question": value_at(row, question),
                "ground_truth": truth,
                "data_source": data["source"],
                "index": at,
                "split": data["split"],
            }
            for at, (row, truth) in enumerate(zip(found or (), truths, strict=True))
        ] or None
    except (UserError, KeyError, TypeError):
        return None


def _data_columns(data: Mapping[str, Any]) -> list[str] | None:
    """The columns of local data; None if they cannot be read here."""
    if source_kind(data["source"]) != "local":
        return None
    found = _first_of_file(local_path(data["source"]))
    return list(found[0]) if found and isinstance(found[0], Mapping) else None


def _first_of_file(path: Path) -> list[dict[str, Any]] | None:
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(path) as file:
                return list(next(file.iter_batches(batch_size=_ROWS)).to_pylist())
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as file:
                lines = (line for line in file if line.strip())
                return [json.loads(line) for line, _ in zip(lines, range(_ROWS), strict=False)]
        return list(json.loads(path.read_text(encoding="utf-8"))[:_ROWS])
    except (OSError, ValueError, TypeError, StopIteration):
        return None


def reward_models(case: Case) -> Iterator[Finding]:
    """Local reward models that are no one-label sequence classifiers, or read fewer tokens than a text may have."""
    for reward in case.workload.get("rewards") or ():
        if "model" not in reward:
            continue
        if source_kind(reward["model"]) != "local" or not (folder := local_path(reward["model"])).exists():
            continue  # preparing the inputs reports a missing model
        if problem := reward_model_problem(folder):
            yield Finding(
                "impossible",
                "reward-model",
                (case.arm,),
                problem,
                "no completion can be scored with it",
                _MODELS,
                "workload.rewards: a sequence classifier with one label, with its tokenizer and weights",
            )
            continue
        limits = [one for one in (reward["max_length"], context_length(folder)) if one is not None]
        if limits and case.longest > min(limits):
            yield Finding(
                "odd",
                "reward-model-length",
                (case.arm,),
                f"{reward['name']} reads at most {min(limits)} tokens, and prompt and response may have {case.longest}",
                "longer texts lose their beginning, and so the prompt; the log counts them "
                f"(rewards/{reward['name']}/truncated). Its tokenizer is not the policy's: the numbers are approximate",
                _MODELS,
                "a reward model with more positions, a larger max_length, or shorter responses",
            )
