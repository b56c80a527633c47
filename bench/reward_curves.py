"""Measures whether rewards drive a training on a CPU: over seeds, one reward rises at the cost of another.

The Zenn article's experiment in small (experiments/tinyswallow-emoji-cpu.yaml) with what makes its rewards pull apart:
as many emojis count as a completion has tokens, and each is a token and one character. docs/trl.md says why.
"""

from __future__ import annotations

import copy
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.in_turns import built_python
from bench.measure import ROOT, Line, cost_of
from common.files import write_json
from workflow.config.plan import Plan, plan_runs, stack_facts
from workflow.config.reading import parse_config, read_yaml

EXPERIMENT = ROOT / "experiments" / "tinyswallow-emoji-cpu.yaml"
SEEDS, STEPS, ENDS = (0, 1, 2), 24, 4
"""The means of the first and of the last steps of each run are compared."""


def curve_lines() -> list[Line]:
    """How many seeds do not show it, and the mean change of both rewards."""
    with tempfile.TemporaryDirectory(prefix="bench-curves-") as name:
        folder = Path(name)
        plan = _plan(folder)
        cost = _trained(folder, plan)
        changes = [_changes(folder / "runs" / run) for run in plan.runs]
    for run, change in zip(plan.runs, changes, strict=True):
        print(f"{run}: " + ", ".join(f"{reward} {first:.2f} -> {last:.2f}" for reward, (first, last) in change.items()))
    risen = [last - first for first, last in (change["emoji"] for change in changes)]
    fallen = [first - last for first, last in (change["length"] for change in changes)]
    return [
        Line(f"{len(SEEDS)} seeds: emoji reward does not rise by 2", sum(one < 2 for one in risen), 0, ""),
        Line(f"{len(SEEDS)} seeds: length reward does not fall by 0.1", sum(one < 0.1 for one in fallen), 0, ""),
        Line("emoji reward, mean rise", statistics.mean(risen), None, "of 16"),
        Line("length reward, mean fall", statistics.mean(fallen), None, "of 1"),
        Line(f"{len(SEEDS)} runs of {STEPS} steps: CPU", cost, 100, "s"),
    ]


def _plan(folder: Path) -> Plan:
    raw = copy.deepcopy(read_yaml(EXPERIMENT))
    raw["arms"] = {"transformers": raw["arms"]["transformers"]}
    source = ROOT / raw["workload"]["data"]["source"]
    lines = (json.dumps(row, ensure_ascii=False) for row in _rows(source))
    (folder / "questions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    raw["workload"]["data"]["source"] = str(folder / "questions.jsonl")
    raw["workload"]["rewards"][0]["options"] = {"most": raw["workload"]["max_response_length"]}
    raw["workload"] |= {"steps": STEPS, "learning_rate": 3e-3, "save_steps": 0}
    raw["seeds"] = list(SEEDS)
    return plan_runs(parse_config(raw), stack_facts)


def _rows(source: Path) -> Iterator[dict[str, str]]:
    """The questions, each with one emoji between its letters: so the tokenizer learns no token of two, or with more."""
    for line in source.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        emoji = next(one for one in row["query"] if ord(one) > 0x1F000)
        text = "".join(one for one in row["query"] if ord(one) < 0x1F000 and one != " ")
        yield {"query": f"{text[:2]}{emoji}{text[2:]}", "answer": row["answer"]}


def _trained(folder: Path, plan: Plan) -> float:
    """Prepare the inputs and train all runs, by one process of the stack; its CPU seconds."""
    (request,) = plan.inputs.values()
    write_json(folder / "request.json", request)
    for run in plan.runs.values():
        write_json(folder / "runs" / run.run_id / "spec.json", run.spec)
    stack = next(iter(plan.runs.values())).stack
    python = built_python(stack)
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    return cost_of([str(python), "-m", "bench.curves_in_stack", str(folder)], env=environment).cpu_s


def _changes(run: Path) -> dict[str, tuple[float, float]]:
    """Each reward's mean over the first and over the last steps."""
    lines = [json.loads(line) for line in (run / "1" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curves = {name: [line["scalars"][f"train/rewards/{name}/mean"] for line in lines] for name in ("emoji", "length")}
    return {name: (statistics.mean(one[:ENDS]), statistics.mean(one[-ENDS:])) for name, one in curves.items()}
