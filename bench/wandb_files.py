"""Runs of any number as wandb leaves them offline: real files of one real run, with other numbers in each copy."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

METRICS = 80
# Logs as verl does: a row for each step, under wandb's own step.
WRITER = """
import json, sys, wandb
run = wandb.init(project="bench", id="template", config={"trainer": {"nnodes": 1}},
                 settings=wandb.Settings(x_disable_stats=True, console="off"))
for row in json.load(sys.stdin):
    run.log(row, step=row["training/global_step"])
run.finish()
"""
# The frames of a .wandb file: LevelDB's log format, in blocks, with zlib's checksum.
BLOCK, HEAD = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def step_row(step: int, speed: float, rng: random.Random) -> dict[str, float]:
    """A step of verl 0.4.1 with 16 completions, of `METRICS` numbers: generation follows the longest one."""
    longest = rng.uniform(20_000, 31_744)
    mean = longest * rng.uniform(0.4, 0.7)
    gen = speed * (5.0 + 0.012 * longest + 0.001 * 16 * mean) * rng.uniform(0.99, 1.01)
    rest = {name: rng.uniform(3.0, 4.0) for name in ("reward", "old_log_prob", "adv", "update_actor")}
    row: dict[str, float] = {f"timing_s/{name}": seconds for name, seconds in rest.items()}
    row |= {
        "training/global_step": step,
        "timing_s/gen": gen,
        "timing_s/reshard": 1.0 + rng.random() / 10,
        "timing_s/generate_sequences": gen - 2.5,
        "timing_s/step": gen + sum(rest.values()) + 0.01,
        "response_length/mean": mean,
        "response_length/max": longest,
        "response_length/clip_ratio": float(longest > 31_000) / 16,
        "prompt_length/mean": 150.0 + rng.random(),
        "critic/score/mean": 0.3 + step / 1000 + rng.gauss(0, 0.05),
    }
    return row | {f"actor/metric_{number}": rng.random() for number in range(METRICS - len(row))}


def template(folder: Path, steps: int) -> Path:
    """The file of one real offline run of wandb."""
    folder.mkdir(parents=True)
    rows = [step_row(step, 1.0, random.Random(step)) for step in range(1, steps + 1)]
    env = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", WRITER], input=json.dumps(rows), text=True, env=env, cwd=folder, check=True)
    return next(folder.glob("wandb/offline-run-*/run-template.wandb"))


def frames(data: bytes) -> Iterator[bytes]:
    """The records of a whole file, without its head."""
    at, parts = HEAD, b""
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        _, length, kind = struct.unpack_from("<LHB", data, at)
        parts += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def framed(head: bytes, records: Iterable[bytes]) -> bytes:
    """A file of these records."""
    out = bytearray(head)
    for record in records:
        begun, rest = False, memoryview(record)
        while True:
            left = BLOCK - len(out) % BLOCK
            if left < HEAD:
                out += b"\0" * left
                left = BLOCK
            part, rest = rest[: left - HEAD], rest[left - HEAD :]
            kind = (LAST if begun else FULL) if not rest else (MIDDLE if begun else FIRST)
            checksum = zlib.crc32(part, zlib.crc32(bytes([kind])))
            out += struct.pack("<LHB", checksum, len(part), kind) + part
            begun = True
            if not rest:
                break
    return bytes(out)


def read_records(data: bytes) -> list[Any]:
    """The records of a whole file, parsed."""
    from wandb.proto import wandb_internal_pb2 as pb

    found = []
    for raw in frames(data):
        record = pb.Record()
        record.ParseFromString(raw)
        found.append(record)
    return found


def with_numbers(originals: list[Any], rows: list[dict[str, float]]) -> list[bytes]:
    """The records of the template with these rows' numbers in its history, and in the summary of each row."""
    found, row = [], 0
    for record in originals:
        kind = record.WhichOneof("record_type")
        items = {"history": record.history.item, "summary": record.summary.update}.get(kind, ())
        for item in items:
            key = item.key or "/".join(item.nested_key)
            if row < len(rows) and key in rows[row]:
                item.value_json = repr(rows[row][key])
        row += kind == "history"
        found.append(record.SerializeToString())
    return found
