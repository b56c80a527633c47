"""Measures how fast a node is, for a few seconds before its attempt trains, to find a node that is slower than others.

    python -m node.node_speed GPUS FOLDER

It prints one line of JSON for each measurement as soon as it has it, so that a limit loses only the rest. More is
faster in all of them. It runs in the stack's interpreter: numpy measures a CPU, torch the GPUs and the links between
them. What cannot be measured is printed with the reason.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.contracts import SpeedFigure

REPEATS = 5
# A product of small matrices is shorter than another process's turn on a CPU.
_LEAST_S = 1.0
# A shared file system is not to be filled.
_MOST_WRITES = 10
_MATRIX, _GPU_MATRIX = 512, 8192
_MIB = 2**20
_COPIED, _GPU_COPIED, _SENT, _REDUCED, _WRITTEN = 64 * _MIB, 1024 * _MIB, 256 * _MIB, 256 * _MIB, 16 * _MIB
# One GPU operation is too short to time alone: so many follow one another.
_IN_A_ROW = 20
# Threads that share a product wait for each other: beside another program it takes up to 70 times as long.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def timed(action: Callable[[], object], most: int = 10_000) -> list[float]:
    """The seconds of the fastest repetitions in a second, of at most so many: other work on the node slows the others.

    The first one is not counted.
    """
    action()
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < REPEATS or (len(seconds) < most and time.perf_counter() - began < _LEAST_S):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[:REPEATS]


def cpu_speed() -> list[SpeedFigure]:
    """Matrix products of one CPU, and copies in memory."""
    import numpy

    square = numpy.ones((_MATRIX, _MATRIX), dtype=numpy.float32)
    source = numpy.ones(_COPIED, dtype=numpy.uint8)
    target = numpy.empty_like(source)
    return [
        figure("CPU matrix product", "GFLOP/s", 2 * _MATRIX**3 / 1e9, timed(lambda: square @ square)),
        figure("memory copy", "GB/s", 2 * _COPIED / 1e9, timed(lambda: numpy.copyto(target, source))),
    ]


def disk_speed(folder: Path) -> list[SpeedFigure]:
    """Writes to a file without a name in the attempt's folder, so that nothing remains of it."""
    content = os.urandom(_WRITTEN)
    with tempfile.TemporaryFile(dir=folder) as file:

        def write() -> None:
            file.seek(0)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

        return [figure("disk write", "MB/s", _WRITTEN / 1e6, timed(write, _MOST_WRITES))]


def gpu_speed(gpus: int) -> list[SpeedFigure]:
    """Matrix products and copies of each GPU while all of them work, and an all-reduce over them."""
    import torch

    devices = [torch.device("cuda", index) for index in range(gpus)]
    figures: list[SpeedFigure] = []

    def each(what: str, unit: str, amount: float, make: Callable[[Any], Callable[[], object]]) -> None:
        actions = [make(device) for device in devices]
        for device, seconds in zip(devices, _timed_on(torch, devices, actions), strict=True):
            figures.append(figure(what, unit, amount, seconds, device.index))

    def product(device: Any) -> Callable[[], object]:
        square = torch.randn(_GPU_MATRIX, _GPU_MATRIX, dtype=torch.bfloat16, device=device)
        result = torch.empty_like(square)
        return lambda: torch.mm(square, square, out=result)

    def copy(device: Any) -> Callable[[], object]:
        source = torch.ones(_GPU_COPIED, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def send(device: Any) -> Callable[[], object]:
        source = torch.ones(_SENT, dtype=torch.uint8).pin_memory()
        target = torch.empty(_SENT, dtype=torch.uint8, device=device)
        return lambda: target.copy_(source, non_blocking=True)

    each("GPU matrix product", "TFLOP/s", 2 * _GPU_MATRIX**3 / 1e12, product)
    each("GPU memory copy", "GB/s", 2 * _GPU_COPIED / 1e9, copy)
    each("copy to the GPU", "GB/s", _SENT / 1e9, send)
    if gpus > 1:
        from torch.cuda import nccl

        tensors = [torch.ones(_REDUCED // 4, device=device) for device in devices]
        # As nccl-tests: each byte crosses the links 2 (n - 1) / n times.
        amount = 2 * (gpus - 1) / gpus * _REDUCED / 1e9
        (seconds, *_) = _timed_on(torch, devices, [lambda: nccl.all_reduce(tensors), *[lambda: None] * (gpus - 1)])
        figures.append(figure("all-reduce over the GPUs", "GB/s", amount, seconds))
    return figures


def _timed_on(torch: Any, devices: list[Any], actions: list[Callable[[], object]]) -> list[list[float]]:
    """The seconds of one action on each device, while all of them work."""
    for action in actions:
        action()
    seconds: list[list[float]] = [[] for _ in devices]
    for _ in range(REPEATS):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in devices]
        for place in (0, 1):
            for device, pair in zip(devices, events, strict=True):
                with torch.cuda.device(device):
                    pair[place].record()
            for _ in range(_IN_A_ROW * (place == 0)):
                for action in actions:
                    action()
        for number, (device, (start, end)) in enumerate(zip(devices, events, strict=True)):
            torch.cuda.synchronize(device)
            seconds[number].append(start.elapsed_time(end) / 1000 / _IN_A_ROW)
    return seconds


def figure(what: str, unit: str, amount: float, seconds: list[float], gpu: int | None = None) -> SpeedFigure:
    """A measurement of an amount in units, from the seconds of its repetitions."""
    return {"what": what, "unit": unit, "gpu": gpu, "values": [float(f"{amount / one:.4g}") for one in seconds]}


def main(gpus: int, folder: Path) -> None:
    """Print all measurements, and for what fails the reason."""
    os.environ.update(_ONE_THREAD)  # before numpy is loaded, which torch does, too
    parts: dict[str, Callable[[], list[SpeedFigure]]] = {"CPUs": cpu_speed, "disk": lambda: disk_speed(folder)}
    if gpus:
        parts = {"GPUs": lambda: gpu_speed(gpus), **parts}
    for name, measure in parts.items():
        try:
            lines: list[Any] = measure()
        except Exception as error:  # whatever a driver raises, the training begins
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            lines = [{"not_measured": name, "reason": reason}]
        for line in lines:
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
