"""Trains the toy: `python -m tests.trainers.toy.driver <attempt.json>`; policy gradients on a table of bigrams."""

import json
import sys
import time

import numpy as np
import pyarrow.parquet as pq

from common.errors import UserError
from node.attempt import begin, exit_code, write_done
from node.phase_clock import PhaseClock
from node.rewards import reward_functions
from tests.engines.abacus import draw

LETTERS = "0123456789+-= ."
START, END = LETTERS.index("="), LETTERS.index(".")
_KNOWN = {"steps", "group", "prompts", "letters", "rate", "seed"}


def resolved(trainer_args, rewards):
    """numpy's version and all settings; `UserError` for one that there is not."""
    if unknown := sorted(set(trainer_args) - _KNOWN):
        raise UserError(f"the toy has no setting {unknown[0]}")
    return np.__version__, {"rate": 0.5, **trainer_args}


def train(attempt, stop):
    """Train one attempt to its end, and write done.json."""
    job, clock = begin(attempt), PhaseClock()
    job.inputs.require_unchanged()
    _, args = resolved(job.spec["trainer_args"], ())
    score = reward_functions(job.spec["workload"]["rewards"], args["letters"])
    random, rows = np.random.default_rng(args["seed"]), pq.read_table(job.inputs.data).to_pylist()
    table = np.zeros((len(LETTERS), len(LETTERS)))
    print(f"[toy] numpy {np.__version__}", flush=True)
    for step in range(1, args["steps"] + 1):
        picked = [rows[int(n)] for n in random.integers(len(rows), size=args["prompts"])]
        with clock.phase("step"):
            with clock.phase("draw"):
                groups = [
                    [draw(table, START, END, args["letters"], random) for _ in range(args["group"])] for _ in picked
                ]
            with clock.phase("learn"):
                reward = _learn(table, groups, picked, score, args["rate"])
        _log(job.folder, step, clock, reward, groups)
    packages = ("numpy", "pyarrow")
    write_done(
        job, first_step=1, last_step=args["steps"], packages=packages, hardware={"cpus": len(job.affinity)},
        trainer=args, engine={"name": "abacus", "beads": args["group"] * args["prompts"]},
    )  # fmt: skip


def _learn(table, groups, picked, score, rate):
    """Moves the table towards the completions that are better than their group; the mean reward."""
    means = []
    for group, row in zip(groups, picked, strict=True):
        texts = ["".join(LETTERS[n] for n in one) for one in group]
        known = [row["reward_model"]] * len(texts)
        rewards = np.sum([one(completions=texts, reward_model=known) for one in score], axis=0)
        for one, advantage in zip(group, rewards - rewards.mean(), strict=True):
            for before, after in zip([START, *one], one, strict=False):
                table[before, after] += rate * advantage
        means.append(float(rewards.mean()))
    return float(np.mean(means))


def _log(folder, step, clock, reward, groups):
    """The step's line in metrics.jsonl, and on the console."""
    phases, _ = clock.take()
    seconds = {path.rpartition("/")[2]: value for path, value in phases.items()}
    lengths = [float(len(one)) for group in groups for one in group]
    scalars = {f"timing_s/{name}": value for name, value in seconds.items()}
    scalars |= {"toy/score": reward, "toy/characters": float(np.mean(lengths))}
    row = {"step": step, "time": time.time(), "phases": {}, "scalars": scalars, "samples": {"response_length": lengths}}
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    told = " | ".join(f"{name} {value:.6f}" for name, value in seconds.items())
    print(f"[toy] {step} | {told} | score {reward:.6f} | characters {np.mean(lengths):.6f}", flush=True)


if __name__ == "__main__":
    sys.exit(exit_code(train))
