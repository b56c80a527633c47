"""Reads what a job is given for its attempt, checks its stack on the node, and writes what it did."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from common.contracts import AttemptFile, DoneFile, InputsSha256, SpecFile, read_file
from common.errors import UserError
from common.files import file_sha256, inputs_sha256, read_json_object
from node.exit_codes import StopRequest, run, show_stacks_on_request
from node.hardware import git_state, hardware, pin_cpus, reported_environment, set_environment
from node.ranks import cpu_share, local_rank, world_size
from node.records import tree_sha256, write_json

_CHECK_LIMIT_S = 3600.0
"""Each of verify.py's checks with a GPU has a limit of its own; this is for whatever else may hang."""
_KEYS = ("attempt", "run_id", "fingerprint", "spec", "inputs", "attempt_dir", "checkpoint_dir", "cpus")


def read_attempt(arguments: Sequence[str]) -> dict[str, Any]:
    """The attempt.json that the command line names (`arguments` without the program's name)."""
    if len(arguments) != 1:
        raise UserError(f"one argument is needed, an attempt.json, got {len(arguments)}")
    attempt = read_file(AttemptFile, Path(arguments[0]), "the job on the node", _KEYS)
    # Now, not when it is done: the checkout may be another by then.
    return {**attempt, "git": git_state()}


def read_spec(attempt: Mapping[str, Any]) -> SpecFile:
    """The attempt's spec.json; `UserError` if the attempt was ordered for another."""
    spec = read_file(SpecFile, Path(attempt["spec"]), "the job on the node", ("fingerprint",))
    if spec["fingerprint"] != attempt["fingerprint"]:
        raise UserError(
            f"attempt.json is for fingerprint {attempt['fingerprint'][:12]}, but spec.json has "
            f"{spec['fingerprint'][:12]}; the plan has changed, submit the run again"
        )
    return spec


class Inputs:
    """The attempt's inputs.json, and where its files lie."""

    def __init__(self, attempt: Mapping[str, Any]) -> None:
        path = Path(attempt["inputs"])
        self.content = read_json_object(path, "the rule `inputs`")
        self.data = path.parent / self.content["data"]["path"]
        self.model = path.parent / self.content["model"]["path"]
        test = self.content.get("test")
        self.test = path.parent / test["path"] if test else None
        self.reward_models = {key: Path(one["path"]) for key, one in (self.content.get("reward_models") or {}).items()}
        """The folders of the workload's reward models."""

    def require_unchanged(self) -> None:
        """`UserError` if data or model are not what inputs.json says: done.json would name what was not trained."""
        for what, path, sha in (
            ("data", self.data, file_sha256(self.data) if self.data.is_file() else None),
            *([("test", self.test, file_sha256(self.test) if self.test.is_file() else None)] if self.test else []),
            ("model", self.model, tree_sha256(self.model) if self.model.is_dir() else None),
        ):
            if sha != self.content[what]["sha256"]:
                expected = self.content[what]["sha256"][:12]
                got = "is not there" if sha is None else f"has sha256 {sha[:12]}, not {expected}"
                raise UserError(f"the {what} changed after it was prepared: {path} {got}; start snakemake again")
        for key, path in self.reward_models.items():
            if not path.is_dir() or tree_sha256(path) != self.content["reward_models"][key]["sha256"]:
                raise UserError(
                    f"the reward model {key} changed after it was prepared: look at {path}; start snakemake again"
                )


@dataclass(frozen=True)
class Job:
    """An attempt that has begun: what it was ordered, and its share of the node."""

    attempt: Mapping[str, Any]
    spec: SpecFile
    inputs: Inputs
    started: float
    affinity: list[int]

    @property
    def folder(self) -> Path:
        """Where the attempt writes."""
        return Path(self.attempt["attempt_dir"])

    def hardware(self, threads: int) -> dict[str, Any]:
        """The node as done.json describes it; `threads` are torch's after the engine was built."""
        return hardware(int(self.attempt["cpus"]), threads, self.affinity)


def exit_code(train: Callable[[dict[str, Any], StopRequest], None]) -> int:
    """Read the order on the command line and train it; 0, 1, 2 or 75 as node/exit_codes.py says."""

    def main() -> None:
        attempt = read_attempt(sys.argv[1:])
        stop = StopRequest()
        stop.install()
        show_stacks_on_request()
        train(attempt, stop)

    return run(main)


def begin(attempt: Mapping[str, Any], beside: str = "") -> Job:
    """Take the job's CPUs, set its environment and check a registered stack; nothing large is imported yet.

    Of several processes each takes its part of the CPUs, and the first of each node checks the stack there; what runs
    `beside` the trainer under that name checks it, too.
    """
    local = local_rank()[0]
    part, width, parts = cpu_share()
    affinity = pin_cpus(int(attempt["cpus"]), part, parts, width)
    job = Job(attempt, read_spec(attempt), Inputs(attempt), time.time(), affinity)
    set_environment(os.environ, job.affinity, attempt, str(job.spec["experiment"]))
    if world_size() > 1 and not job.spec["workload"].get("gpus_per_node"):
        # accelerate 1.15 calls a process's device cpu:0, by which torch loads no checkpoint.
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
    for folder in ("attempt_dir", "checkpoint_dir"):
        Path(attempt[folder]).mkdir(parents=True, exist_ok=True)
    if local == 0:
        require = require_working_gpus if job.spec["workload"].get("gpus_per_node") else require_as_registered
        node = os.environ.get("GROUP_RANK", "0")
        who = f"-{beside}" if beside else f"-node{node}" if node != "0" else ""
        require(attempt, str(job.spec["stack"]), f"verify{who}.json")
    return job


def stack_origin() -> dict[str, Any] | None:
    """Where this Python's stack comes from, its state `built` or as recorded; None where nothing tells (an image)."""
    env = Path(sys.prefix)
    try:
        if (env / "origin.json").is_file():
            origin = json.loads((env / "origin.json").read_text(encoding="utf-8"))
        else:
            origin = json.loads((env.parent / "verify.json").read_text(encoding="utf-8")).get("origin")
        return {"state": "built", **(origin or {})}
    except (OSError, ValueError):
        return None


def require_as_registered(attempt: Mapping[str, Any], stack: str, verdict: str = "verify.json") -> None:
    """Check a registered stack again: the interpreter below it may have changed since. A built one costs nothing."""
    if "python" in (stack_origin() or {}):
        _require_verified(attempt, stack, [], verdict)


def require_working_gpus(attempt: Mapping[str, Any], stack: str, verdict: str = "verify.json") -> None:
    """Run the stack's verify.py with the GPUs of this node; a `UserError` with what failed, before anything is loaded.

    The login node could only check what needs no GPU. The verdict is a file of the attempt's folder. A Python that is
    no stack's has nothing to be checked by.
    """
    verified = _verified(attempt)
    if verified is None:
        return
    if "run" not in json.loads(verified.read_text(encoding="utf-8")):
        raise UserError(
            f"the stack {stack} was verified by an older rolloutbench, without its run-time environment; run "
            f"`python -m workflow.stacks build {stack}`, which verifies it again and builds nothing"
        )
    _require_verified(attempt, stack, ["--gpu"], verdict)


def require_working_nodes(attempt: Mapping[str, Any], stack: str, while_waiting: Callable[[], None]) -> None:
    """`require_working_gpus` on all other nodes of the Ray cluster that this process has joined, at the same time.

    `while_waiting` is called twice a second. On each node the GPUs that Ray was told of are visible, all of them.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not others or _verified(attempt) is None:
        return
    asked = {}
    for node in others:
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_gpus=node["Resources"].get("GPU", 0), max_retries=0, scheduling_strategy=where)(_trouble)
        asked[task.remote(dict(attempt), stack)] = node["NodeManagerHostname"]
    waiting, found = list(asked), []
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.5)
        while_waiting()
        for one in done:
            try:
                found.append(ray.get(one))
            except ray.exceptions.RayError as error:
                reason = " ".join(str(error).split())[:300]
                found.append(f"the check of the stack {stack} on {asked[one]} gave no verdict: {reason}")
    if failed := sorted(filter(None, found)):
        raise UserError("; ".join(failed))


def _trouble(attempt: Mapping[str, Any], stack: str) -> str:
    """What keeps the stack from working on this node; empty where it works."""
    try:
        require_working_gpus(attempt, stack, f"verify-{platform.node()}.json")
    except UserError as error:
        return str(error)
    return ""


def _verified(attempt: Mapping[str, Any]) -> Path | None:
    """The verify.json of the stack that this process runs in; None for a Python that is no stack's.

    It lies beside the environment. An image's interpreter lies elsewhere than the program that starts it, the adopted
    stack's, which the attempt names.
    """
    environments = [Path(sys.prefix), *(Path(program).parents[1] for program in attempt.get("command", [])[:1])]
    return next((file for env in environments if (file := env.parent / "verify.json").is_file()), None)


def _require_verified(attempt: Mapping[str, Any], stack: str, options: list[str], name: str) -> None:
    program = Path(__file__).parents[1] / "envs" / stack / "verify.py"
    verdict = Path(attempt["attempt_dir"]) / name
    print(f"checking the stack {stack}{' with GPUs' if options else ''} on this node", flush=True)
    # -I: neither PYTHONPATH nor the user's own packages may stand in for what the stack lacks.
    command = [sys.executable, "-I", str(program), *options, "--out", str(verdict)]
    try:
        if subprocess.run(command, check=False, timeout=_CHECK_LIMIT_S).returncode == 0:
            return
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the stack's own check {program} did not end within {_CHECK_LIMIT_S:.0f} s on {platform.node()} and was "
            "killed; the log above names what it did last. Exclude the node (exclude in the profile)"
        ) from None
    try:
        checks = json.loads(verdict.read_text(encoding="utf-8"))["checks"]
    except (OSError, ValueError, KeyError):
        raise UserError(f"the stack's own check {program} gave no verdict on this node; see above in the log") from None
    failed = [f"{one['name']}: expected {one['expected']}, got {one['got']}" for one in checks if not one["ok"]]
    raise UserError(
        f"the stack {stack} does not work on {platform.node()}: {'; '.join(failed[:5])}. Exclude the node (exclude in "
        "the profile), or look at its driver and at what setup.sh loads"
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of Python and of those packages that are installed; a CPU build is named as its package."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name.removesuffix("-cpu")] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_done(
    job: Job,
    *,
    first_step: int | None,
    last_step: int,
    packages: Iterable[str],
    hardware: Mapping[str, Any],
    trainer: Mapping[str, Any],
    engine: Mapping[str, Any],
    releases: Mapping[str, str] | None = None,
) -> None:
    """Write done.json, and a last line to the log; `first_step` is None where an earlier attempt had done them all.

    `trainer` and `engine` are their settings as they finally were. `releases` are of what is no package of the stack,
    beside those of `packages`.
    """
    attempt, inputs = job.attempt, job.inputs.content
    steps = last_step - first_step + 1 if first_step else 0
    done: DoneFile = {
        "run_id": attempt["run_id"],
        "fingerprint": attempt["fingerprint"],
        "attempt": attempt["attempt"],
        "first_step": first_step or last_step + 1,
        "last_step": last_step,
        "steps": steps,
        "started": job.started,
        "finished": time.time(),
        "inputs": cast(InputsSha256, inputs_sha256(inputs)),
        "versions": {**versions(packages), **(releases or {})},
        "hardware": dict(hardware),
        "resolved": {"trainer": dict(trainer), "engine": dict(engine), "environment": reported_environment(os.environ)},
        "git": attempt.get("git"),
    }
    # Of a built stack, too: another environment may lie in its folder when the report is made.
    if origin := stack_origin():
        done["stack_origin"] = origin
    write_json(job.folder / "done.json", done)
    print(f"done: {steps} steps, {last_step} in all", flush=True)
