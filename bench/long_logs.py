"""Writes long logs of one run in every format whose size is not bounded by its training.

Each is made from a real step: verl's line of experiments/camino-2025-published, and rows as TRL and ms-swift log them,
with other numbers in every step.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from bench.measure import ROOT
from bench.wandb_files import HEAD, framed, read_records, step_row, template, with_numbers

REAL_LINE = ROOT / "experiments" / "camino-2025-published" / "sglang-step3.log"
# Of wandb's file that is repeated.
STEPS = 100
# What a trainer prints besides: with it a step is 2.7 kB of log.
_BETWEEN = "(WorkerDict pid=412) the reward function compares an answer with the one that the data set holds\n" * 10


def seconds_of(rng: random.Random) -> dict[str, float]:
    """A step's seconds, a whole and parts that fit in it."""
    parts = {name: rng.uniform(1.0, 20.0) for name in ("reward", "old_log_prob", "ref", "adv", "update_actor")}
    gen = rng.uniform(300.0, 400.0)
    whole = gen + sum(parts.values()) + 0.1
    return parts | {"reshard": 2.0, "generate_sequences": gen - 2.5, "gen": gen, "step": whole}


@cache
def real_step() -> dict[str, float]:
    """The numbers of verl's real line, by name."""
    pieces = REAL_LINE.read_text(encoding="utf-8").strip().split(" - ")[1:]
    return {name: float(value) for name, _, value in (piece.rpartition(":") for piece in pieces)}


def verl_values(rng: random.Random, step: int) -> dict[str, float]:
    """The numbers of the real step, with others near them."""
    values = {name: value * rng.uniform(0.8, 1.2) for name, value in real_step().items()}
    return values | {f"timing_s/{k}": v for k, v in seconds_of(rng).items()} | {"training/global_step": float(step)}


def verl_console(rng: random.Random) -> Iterator[str]:
    for step in count(1):
        shown = " - ".join(f"{name}:{value:.3f}" for name, value in verl_values(rng, step).items())
        bar = f"Training Progress:   1%|▏         | {step}/1000000 [41:02<65:25:40, 820.70s/it]"
        yield f"(TaskRunner pid=411) step:{step} - {shown}\n{_BETWEEN}(TaskRunner pid=411) {bar}\n"


def verl_jsonl(rng: random.Random) -> Iterator[str]:
    for step in count(1):
        yield json.dumps({"step": step, "data": verl_values(rng, step)}) + "\n"


def trl_row(rng: random.Random, step: int) -> dict[str, Any]:
    """A row of TRL's, as transformers' Trainer keeps it."""
    names = [f"completions/{of}_{what}length" for of in ("mean", "min", "max") for what in ("", "terminated_")]
    names += [f"rewards/{of}/{what}" for of in ("accuracy", "format", "length") for what in ("mean", "std")]
    names += [f"sampling/{of}/{what}" for of in ("logp_difference", "ratio") for what in ("min", "mean", "max")]
    names += [f"clip_ratio/{of}_{what}" for of in ("low", "high", "region") for what in ("mean", "min")]
    names += ["completions/clipped_ratio", "reward", "reward_std", "frac_reward_zero_std", "entropy", "kl"]
    row: dict[str, Any] = {"loss": round(rng.random(), 4), "grad_norm": rng.random(), "learning_rate": 1e-6}
    row |= {name: rng.random() for name in names}
    return row | {"num_tokens": 4096.0 * step, "step_time": rng.uniform(3.0, 4.0), "epoch": round(step / 1e6, 6)}


def trainer_state(rng: random.Random) -> Iterator[str]:
    yield '{\n  "best_metric": null,\n  "epoch": 1.0,\n  "log_history": [\n'
    for step in count(1):
        row = json.dumps(trl_row(rng, step) | {"step": step}, indent=2).replace("\n", "\n    ")
        yield f"    {row},\n"


TRAINER_STATE_END = '    {\n      "train_runtime": 40.5\n    }\n  ],\n  "max_steps": 1000000\n}\n'


def swift_jsonl(rng: random.Random) -> Iterator[str]:
    for step in count(1):
        told = {"global_step/max_steps": f"{step}/1000000", "percentage": "0.10%"}
        told |= {"elapsed_time": f"{3 * step}s", "remaining_time": "5d 3h 2m 1s", "memory(GiB)": 42.17}
        yield json.dumps(trl_row(rng, step) | told | {"train_speed(s/it)": 3.5}) + "\n"


def wandb_history(rng: random.Random) -> Iterator[str]:
    """The lines of the cache's files of what was downloaded from wandb's server."""
    for step in count(1):
        row = {f"train/{name}": value for name, value in trl_row(rng, step).items()}
        calls = {f"profiling/Time taken: GRPOTrainer.{name}": rng.random() for name in ("generate", "compute_loss")}
        about = {"_step": step, "_timestamp": 1.7e9 + 4.0 * step, "_runtime": 4.0 * step, "train/global_step": step}
        yield json.dumps(row | calls | about) + "\n"


FORMATS = {
    "verl-console": verl_console,
    "verl-jsonl": verl_jsonl,
    "swift-jsonl": swift_jsonl,
    "trainer-state": trainer_state,
    "wandb": wandb_history,
}


def write_log(path: Path, form: str, size: int) -> Path:
    """A log of a format that `FORMATS` names, of so many bytes and a little more."""
    rng, written = random.Random(form), 0
    with path.open("w", encoding="utf-8") as file:
        for text in FORMATS[form](rng):
            written += file.write(text)
            if written >= size:
                break
        file.write(TRAINER_STATE_END if form == "trainer-state" else "")
    return path


def write_wandb_offline(folder: Path, size: int) -> Path:
    """An offline wandb file of so many bytes: one that wandb wrote, its steps over and over with other numbers."""
    data = template(folder / "template", STEPS).read_bytes()
    originals = read_records(data)
    kinds = [record.WhichOneof("record_type") for record in originals]
    first, last = kinds.index("history"), len(kinds) - kinds[::-1].index("history")
    rng, each = random.Random("wandb-offline"), len(data)

    def records() -> Iterator[bytes]:
        yield from with_numbers(originals[:first], [])
        for turn in range(-(-size // each)):
            rows = [step_row(STEPS * turn + step, 1.0, rng) for step in range(1, STEPS + 1)]
            yield from with_numbers(originals[first:last], rows)
        yield from with_numbers(originals[last:], [])

    file = folder / "offline-run-20260101_000000-long" / "run-long.wandb"
    file.parent.mkdir(parents=True)
    file.write_bytes(framed(data[:HEAD], records()))
    return file.parent
