"""Runs of ms-swift, ordered as the launcher orders them, and what is seen of their generations (watched.py)."""

import json
from pathlib import Path

import yaml

from node.dataset import arithmetic_rows
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config

from ...attempts import ROOT, order_attempt, read_lines

AGREE = 1e-4  # nats, as for TRL
CASES = yaml.safe_load(Path(__file__).with_name("runs.yaml").read_text(encoding="utf-8"))
RUNS = CASES["runs"]
# TRL and ms-swift on the same prompts, with transformers and with vLLM.
RAW = yaml.safe_load((ROOT / "tests" / "trainers" / "trainers-cpu.yaml").read_text(encoding="utf-8"))


def placed(value, folder):
    """A value with the paths of a folder."""
    if isinstance(value, dict):
        return {key: placed(one, folder) for key, one in value.items()}
    if isinstance(value, list):
        return [placed(one, folder) for one in value]
    return str(folder / value) if str(value).startswith("./") else value


def planned(folder, *names):
    """The specification of each run, with its files in the folder."""
    for file, text in CASES["files"].items():
        (folder / file).write_text(text)
    rows = (row | {"level": {"of": at, "tags": [None, "a"]}} for at, row in enumerate(arithmetic_rows(64, 0)))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = {}
    for name in names:
        run = placed(RUNS[name], folder)
        arm = RAW["arms"][run["arm"]] | {"options": run.get("options", {})}
        raw = RAW | {"workload": RAW["workload"] | run.get("words", {}), "arms": {name: arm}, "baseline": name}
        found[name] = plan_runs(parse_config(raw), stack_facts).runs[f"{name}-s0"].spec
        found[name]["trainer_args"] |= run.get("args", {})
    return found


class Run:
    """A run's lives in a folder of its own, and in the file beside it what was seen of its generations."""

    def __init__(self, folder, spec, inputs):
        self.folder, self.spec, self.inputs = folder, spec, inputs
        self.out = folder.with_name(f"{folder.name}.jsonl")

    def life(self, number):
        """The folder of a life."""
        return self.folder / "attempts" / str(number)

    def order(self, number):
        """Order a life, as the launcher does."""
        order_attempt(self.folder, self.inputs, self.spec, number)

    def watched(self, number, stop_at=0, then="-"):
        """The words of the program that trains a life, and stops itself at a generation; it is ordered first."""
        order = self.life(number) / "attempt.json"
        if not order.exists():
            self.order(number)
        return "-m", "tests.trainers.swift.watched", self.spec["trainer"], self.out, stop_at, then, order

    def lines(self, *lives, name="metrics.jsonl"):
        """The lines of those lives."""
        return [line for number in lives for line in read_lines(self.life(number) / name)]

    def done(self, number):
        """What a life that came to its end has told."""
        return json.loads((self.life(number) / "done.json").read_text())

    def seen(self, rank=""):
        """Each generation, of several processes those of one."""
        return read_lines(self.out.with_name(f"{self.out.name}{rank}"))


def differences(seen, other):
    """Of each step the largest difference between vLLM's log-probabilities of its tokens and those of a model."""
    for line in seen:
        pairs = zip(line["said"], line[other], strict=True)
        yield max(abs(a - b) for said, own in pairs for a, b in zip(said, own, strict=True))


def check_newest_weights(seen, steps):
    """All generations are of the newest weights; a sync that did nothing would be seen by now."""
    assert len(seen) == steps and max(differences(seen, "policy")) < AGREE
    assert list(differences(seen, "initial"))[-1] > 100 * AGREE
