"""Says in at most ten lines what a stage showed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import mean, median
from typing import Any

from common.gpus import gpu_of
from common.model_facts import model_facts

_PUBLISHED = 2.15
"""How much faster SGLang's step was in the article."""
Result = Mapping[str, Any]


def stage_lines(result: Result) -> list[str]:
    """The stage's results, the most important first."""
    device, versions = result["device"], result["versions"]
    where = f"{device['name']}, driver {device['driver']}" if device else "no GPU (a rehearsal)"
    lines = [f"{result['stage']} on {where}: {', '.join(f'{k} {v}' for k, v in versions.items())}"]
    seconds = [f"{what} {value:.0f} s" for what, value in result["seconds"].items()]
    lines.append(f"seconds: {', '.join(seconds)}" if seconds else "nothing was installed: it was there")
    if result.get("probes"):
        failed = [f"{one['name']}: got {str(one['got'])[:120]}" for one in result["probes"] if not one["ok"]]
        right = len(result["probes"]) - len(failed)
        lines.append(f"probes: {right} of {len(result['probes'])} right{'; ' if failed else ''}{'; '.join(failed)}")
    finished = [task for task in result["tasks"] if task["ok"]]
    lines += [f"{task['task']} FAILED: {task['error']}" for task in result["tasks"] if not task["ok"]]
    replays = [task for task in finished if any("step/generate" in step["phases"] for step in task["steps"])]
    lines += list(_replays(replays, device)) if replays else [line for task in finished for line in _trained(task)]
    lines += _moved(finished)
    return lines


def _trained(task: Result) -> Iterator[str]:
    steps = task["steps"]
    numbers = [step["step"] for step in steps]
    once = numbers == sorted(set(numbers)) and numbers == list(range(1, len(numbers) + 1))
    resumed = [step["step"] for step in steps if step.get("resumed")]
    yield (
        f"{task['task']}: {len(steps)} steps{', each once' if once else f' NOT each once: {numbers}'}"
        f"{f', resumed at step {resumed[0]}' if resumed else ''}; {median(_seconds(_settled(steps))):.2f} s per step "
        f"after a start's first, of {_seconds(steps)[0]:.1f} s; "
        f"{task['seconds']:.0f} s in all"
    )
    shares = [_children(step["phases"]) / step["phases"]["step"] for step in steps]
    yield f"  phases sum to {min(shares):.1%} to {max(shares):.1%} of the step"
    if task["peak_gpu_gib"] is not None:
        yield f"  peak memory {task['peak_gpu_gib']:.1f} GiB"


def _settled(steps: list[Any]) -> list[Any]:
    """The steps without each start's first, which loads kernels; all if no other is there."""
    return [step for step in steps[1:] if not step.get("resumed")] or steps


def _seconds(steps: list[Any]) -> list[float]:
    return [step["phases"]["step"] for step in steps]


def _children(phases: Mapping[str, float]) -> float:
    return sum(value for path, value in phases.items() if path.count("/") == 1)


def _moved(tasks: list[Any]) -> Iterator[str]:
    """How many seconds of a step an unsynchronised clock gives to another phase."""
    named = {task["task"]: task for task in tasks}
    for name, task in named.items():
        other = named.get(f"{name}-unsynchronized")
        if other is None:
            continue
        here, there = (_medians(_settled(one["steps"])) for one in (task, other))
        changes = {path: there.get(path, 0.0) - value for path, value in here.items() if path != "step"}
        widest = sorted(changes, key=lambda path: abs(changes[path]), reverse=True)[:3]
        moved = ", ".join(
            f"{path.removeprefix('step/')} {here[path]:.3f} -> {there.get(path, 0):.3f} s" for path in widest
        )
        yield (f"without waiting for the GPU: step {here['step']:.3f} -> {there['step']:.3f} s; most change: {moved}")


def _medians(steps: list[Any]) -> dict[str, float]:
    paths = dict.fromkeys(path for step in steps for path in step["phases"])
    return {path: median(step["phases"].get(path, 0.0) for step in steps) for path in paths}


def _replays(tasks: list[Any], device: Mapping[str, Any] | None) -> Iterator[str]:
    """Seconds of each arm, its distance from the floor, and the shares of the published ratio."""
    # A stage has the arms of one engine; those of the second have its name in front.
    seconds = {task["task"].removesuffix("-s0").removeprefix("sglang-"): _generate(task) for task in tasks}
    for task in tasks:
        each = _generate(task)
        longest = task["workload"]["max_response_length"]
        floor = _floor_s(task, device)
        over = f", {mean(each) / floor:.2f} x the weights' floor" if floor else ""
        yield (
            f"{task['task']}: generate {', '.join(f'{one:.2f}' for one in each)} s, "
            f"{mean(each) / longest * 1000:.2f} ms per iteration{over}; start {_start(task)}"
        )
    for what, slow, fast in (
        ("CUDA graphs, with blocking", "eager-blocking", "graphs-blocking"),
        ("CUDA graphs, without blocking", "eager", "graphs"),
        ("blocking, eager", "eager-blocking", "eager"),
        ("both", "eager-blocking", "graphs"),
    ):
        if slow in seconds and fast in seconds:
            ratio = mean(seconds[slow]) / mean(seconds[fast])
            share = math.log(ratio) / math.log(_PUBLISHED)
            yield f"{what}: {ratio:.2f}x, {share:.0%} of {_PUBLISHED}x (on a logarithmic scale)"


def _generate(task: Result) -> list[float]:
    return [step["phases"]["step/generate"] for step in task["steps"]]


def _start(task: Result) -> str:
    start = (task["done"]["resolved"].get("engine") or {}).get("start_s")
    return f"{start:.0f} s" if start else "unknown"


def _floor_s(task: Result, device: Mapping[str, Any] | None) -> float | None:
    """Seconds to read all weights once for each iteration; None if the GPU or the model is unknown."""
    gpu = gpu_of(device["name"]) if device else None
    facts = model_facts(task["workload"]["model"]["source"])
    if gpu is None or facts is None or facts.decode_parameters is None:
        return None
    return float(2 * facts.decode_parameters * task["workload"]["max_response_length"] / (gpu.bandwidth_tb_s * 1e12))
