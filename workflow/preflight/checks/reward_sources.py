"""Tests each user reward function on three rows of the data, and checks reward models by their files."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.findings import Finding
from node.built_in_rewards import Response
from node.dataset import arithmetic_rows, ground_truths
from node.hub import source_kind
from node.own_reward import CALL_S, NotLoaded, RewardProgram, TimedOut
from node.reward_model import context_length, reward_model_problem
from trainers.cases import Case
from trainers.memory_estimate import reward_models_of, weights_gib
from workflow.config.imports import local_path
from workflow.config.plan import Plan
from workflow.preflight.checks import LaunchContext, finding_of

_SOURCE = "docs/rewards.md"
_MODELS = f"{_SOURCE}#a-reward-model"
_ROWS = 3
_LOAD_S = 60.0


def own_reward_findings(plan: Plan) -> Iterator[Finding]:
    """Problems of a plan's user reward functions, for all arms that train with them."""
    arms: dict[str, dict[str, None]] = {}
    for run in plan.runs.values():
        for reward in run.spec["workload"]["rewards"]:
            if "code" in reward:
                keys = ("source", "code", "function", "options", "columns", "timeout_s")
                request = {key: reward.get(key) for key in keys} | {"data": run.spec["workload"]["data"]}
                arms.setdefault(json.dumps(request, sort_keys=True), {})[run.spec["arm"]] = None
    for request_text, users in arms.items():
        if (problem := _problem(request_text)) is not None:
            level, code, what, why, change = problem
            yield Finding(level, code, tuple(users), what, why, _SOURCE, change)


_Problem = tuple[Any, str, str, str, str]


@functools.cache
def _problem(request_text: str) -> _Problem | None:
    """Level, code, what, why and change; None if the function works."""
    reward = json.loads(request_text)
    source, where = reward["source"], f"{reward['source']}: {reward['function']}"
    try:
        program = RewardProgram(reward, load_s=_LOAD_S)
    except NotLoaded as error:
        if error.missing is None:
            why = "no run can be scored with it"
            return "impossible", "reward-file", str(error).removeprefix("workload.rewards: "), why, f"correct {source}"
        why = "the stack loads it before any job is queued, but nothing calls it before the first step"
        change = "nothing; or import the package inside the function, so that the rest can be tested here"
        return "odd", "reward-untried", f"{where} imports {error.missing}, which this Python lacks", why, change
    try:
        rows = first_rows(reward["data"])
        if rows is None:
            what = f"{where} was loaded but not called: the data is not on this machine"
            return "odd", "reward-untried", what, "an error in it shows at the first step", "use a local data file"
        slow = (
            f"make {reward['function']} faster, or raise timeout_s of this reward ({reward['timeout_s'] or CALL_S:g} s)"
        )
        return _call_problem(program, responses_to(rows), source, slow)
    finally:
        program.close()


def _call_problem(program: RewardProgram, responses: Sequence[Response], source: str, slow: str) -> _Problem | None:
    values, problem = _values(program, responses)
    what, alone = str(problem or ""), []
    for at, response in enumerate(responses):
        value, problem_alone = _values(program, [response])
        if problem_alone:
            problem = problem_alone
            what = f"{problem}, for the completion {response.text!r} to row {at} of the data"
            break
        alone += value
    if problem:
        why = f"such a completion would have no value in training; {len(responses)} were tested"
        change = slow if isinstance(problem, TimedOut) else f"correct {source}; return None where there is no value"
        return "impossible", "reward-fails", what, why, change
    if values != alone:
        what = f"{program.where} gives {values} for {len(responses)} completions together, and {alone} for each alone"
        why = "trainers differ in how many they pass (verl: one): arms would learn from different rewards"
        return "odd", "reward-by-batch", what, why, "score each completion by itself, without randomness"
    return None


def _values(program: RewardProgram, responses: Sequence[Response]) -> tuple[list[float | None], UserError | None]:
    """The values of a call, and its first problem."""
    try:
        values, problems = program.call(responses)
    except UserError as error:
        return [], error
    return values, next(map(UserError, problems.values()), None)


def responses_to(rows: Sequence[Mapping[str, Any]]) -> list[Response]:
    """Three typical completions: a right answer, no answer, and an empty text."""
    texts = ["<think>So it is.</think><answer>{}</answer>", "I do not know.", ""]
    return [
        Response(
            text=texts[at % len(texts)].format(row["ground_truth"]),
            tokens=[3, 1, 4, 1, 5][: 5 * (at % len(texts) < 2)],
            complete=at % len(texts) != 1,
            prompt=[{"role": "user", "content": str(row["question"])}],
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
            [row[answer] for row in found or ()], data["answer_after"], data.get("answer_commas", "")
        )
        return [
            {
                **{name: row[name] for name in data.get("columns") or ()},
                "question": row[question],
                "ground_truth": truth,
                "data_source": data["source"],
                "index": at,
                "split": data["split"],
            }
            for at, (row, truth) in enumerate(zip(found or (), truths, strict=True))
        ] or None
    except (UserError, KeyError, TypeError):
        return None


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


def reward_models(case: Case, launch: LaunchContext) -> Iterator[Finding]:
    """Local reward models that are no one-label sequence classifiers, or read fewer tokens than a text may have."""
    for reward in reward_models_of(case.workload):
        if source_kind(reward["model"]) != "local" or not (folder := local_path(reward["model"])).exists():
            continue  # preparing the inputs reports a missing model
        if problem := reward_model_problem(folder):
            yield finding_of(
                case,
                "impossible",
                "reward-model",
                problem,
                "no completion can be scored with it",
                _MODELS,
                "workload.rewards: a sequence classifier with one label, with its tokenizer and weights",
            )
            continue
        limits = [one for one in (reward["max_length"], context_length(folder)) if one is not None]
        if limits and case.longest > min(limits):
            yield finding_of(
                case,
                "odd",
                "reward-model-length",
                f"{reward['name']} reads at most {min(limits)} tokens, and prompt and response may have {case.longest}",
                "longer texts lose their beginning, and so the prompt; the log counts them "
                f"(rewards/{reward['name']}/truncated). Its tokenizer is not the policy's: the numbers are approximate",
                _MODELS,
                "a reward model with more positions, a larger max_length, or shorter responses",
            )


def unsized(case: Case) -> list[str]:
    """A sentence per reward model on a case's GPUs whose weights are not in the memory estimate."""
    return [
        f"memory: the weights of the reward model {reward['model']} are not in the estimate: its files are not here"
        for reward in reward_models_of(case.workload)
        if reward["device"] == "trainer" and weights_gib(reward) is None
    ]
