"""Tries each reward function of the user's on three rows of the data, and looks at reward models by their files."""

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
from node.own_reward import NotLoaded, RewardProgram
from node.reward_model import context_length, reward_model_problem
from trainers.cases import Case
from trainers.memory_estimate import reward_models_of, weights_gib
from workflow.config.imports import local_path
from workflow.config.plan import Plan
from workflow.preflight.checks import LaunchContext, finding_of

_SOURCE = "docs/rewards.md"
_MODELS = f"{_SOURCE}#a-reward-model"
_ROWS = 3
_LOAD_S, _CALL_S = 60.0, 10.0


def own_reward_findings(plan: Plan) -> Iterator[Finding]:
    """What is wrong with the users' reward functions of a plan, for all arms that train with them."""
    arms: dict[str, dict[str, None]] = {}
    for run in plan.runs.values():
        for reward in run.spec["workload"]["rewards"]:
            if "code" in reward:
                asked = {key: reward.get(key) for key in ("source", "code", "function", "options", "columns")}
                asked |= {"data": run.spec["workload"]["data"]}
                arms.setdefault(json.dumps(asked, sort_keys=True), {})[run.spec["arm"]] = None
    for asked_text, of in arms.items():
        if (found := _tried(asked_text)) is not None:
            level, code, what, why, change = found
            yield Finding(level, code, tuple(of), what, why, _SOURCE, change)


_Found = tuple[Any, str, str, str, str]


@functools.cache
def _tried(asked_text: str) -> _Found | None:
    """Level, code, what, why and change; None where nothing is wrong."""
    reward = json.loads(asked_text)
    source, where = reward["source"], f"{reward['source']}: {reward['function']}"
    try:
        own = RewardProgram(reward, load_s=_LOAD_S, call_s=_CALL_S)
    except NotLoaded as error:
        if error.missing is None:
            why = "no run can be scored with it"
            return "impossible", "reward-file", str(error).removeprefix("workload.rewards: "), why, f"correct {source}"
        why = "it is loaded in the stack, before anything waits in the queue, and not called before the first step"
        change = "nothing; or import the package inside the function, so that the rest can be tried here"
        return "odd", "reward-untried", f"{where} imports {error.missing}, which this Python lacks", why, change
    try:
        rows = first_rows(reward["data"])
        if rows is None:
            what = f"{where} was loaded, and not called: the data's rows are not here"
            return "odd", "reward-untried", what, "a mistake in it shows at the first step", "use a local data file"
        return _called(own, responses_to(rows), source)
    finally:
        own.close()


def _called(own: RewardProgram, responses: Sequence[Response], source: str) -> _Found | None:
    values, problem = _values(own, responses)
    each = [_values(own, [response]) for response in responses]
    for at, (_, problem_alone) in enumerate(each):
        if problem_alone:
            problem = f"{problem_alone}, for the completion {responses[at].text!r} to row {at} of the data"
            break
    if problem:
        why = f"such a completion would have no value in training; {len(responses)} were tried"
        return "impossible", "reward-fails", problem, why, f"correct {source}; return None where there is no value"
    alone = [value for (value, *_), _ in each]
    if values != alone:
        what = f"{own.where} gives {values} for {len(responses)} completions together, and {alone} for each alone"
        why = "trainers call it with as many as they like (verl with one): arms would learn from other rewards"
        return "odd", "reward-by-batch", what, why, "score each completion by itself, without chance"
    return None


def _values(own: RewardProgram, responses: Sequence[Response]) -> tuple[list[float | None], str]:
    """The values of a call, and what is wrong with it."""
    try:
        values, wrong = own.call(responses)
    except UserError as error:
        return [], str(error)
    return values, next(iter(wrong.values()), "")


def responses_to(rows: Sequence[Mapping[str, Any]]) -> list[Response]:
    """Three completions as models write them: a right answer, no answer, and nothing at all."""
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
    """The data's first rows; None where they are on a hub, or cannot be read here (the job names what is wrong)."""
    kind = source_kind(data["source"])
    if kind == "builtin":
        found: list[dict[str, Any]] | None = list(arithmetic_rows(_ROWS, int(data["seed"])))
        question, answer = "question", "answer"
    else:
        found = _first_of_file(local_path(data["source"])) if kind == "local" else None
        question, answer = data["prompt_column"], data["answer_column"]
    try:
        truths = ground_truths([row[answer] for row in found or ()], data["answer_after"])
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


def reward_models(case: Case, place: LaunchContext) -> Iterator[Finding]:
    """Local ones that are no sequence classifiers of one label, and texts that may be longer than they can read."""
    for reward in reward_models_of(case.workload):
        if source_kind(reward["model"]) != "local" or not (folder := local_path(reward["model"])).exists():
            continue  # the inputs are prepared with it, and name what is wrong then
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
                "longer texts lose their beginning, and the prompt with it; the log counts them "
                f"(rewards/{reward['name']}/truncated). Its tokens are not the policy's: the numbers are near",
                _MODELS,
                "a reward model with more positions, a larger max_length, or shorter responses",
            )


def unsized(case: Case) -> list[str]:
    """The reward models on a case's GPUs whose weights the memory's estimate lacks, in words."""
    return [
        f"memory: the weights of the reward model {reward['model']} are not in the estimate: its files are not here"
        for reward in reward_models_of(case.workload)
        if reward["device"] == "trainer" and weights_gib(reward) is None
    ]
