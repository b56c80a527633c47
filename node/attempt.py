"""Reads an attempt's request, checks its stack on the node, and writes done.json."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from common.contracts import AttemptFile, DoneFile, InputsSha256, SpecFile, read_file
from common.errors import UserError
from common.files import file_sha256, inputs_sha256, read_json, read_json_object, tree_sha256, write_json
from common.redaction import without_secrets
from common.retry import await_file, exists, retry_io
from node.exit_codes import StopRequest, UnfitNodeError, one_line, run, show_stacks_on_request
from node.hardware import git_state, hardware, pin_cpus, reported_environment, set_environment
from node.ranks import cpu_share, local_rank, world_size

_CHECK_LIMIT_S = 3600.0
"""verify.py limits each GPU check itself; this limits everything else."""
_FILES, _STACK = "the attempt's files", "the stack's files"
_KEYS = ("attempt", "run_id", "fingerprint", "spec", "inputs", "attempt_dir", "checkpoint_dir", "cpus")


def read_attempt(arguments: Sequence[str]) -> dict[str, Any]:
    """Read the attempt.json named in the arguments (without the program's name)."""
    if len(arguments) != 1:
        raise UserError(f"expected one argument, an attempt.json (got {len(arguments)} arguments)")
    request = Path(arguments[0])
    attempt = retry_io(lambda: read_file(AttemptFile, request, "the job on the node", _KEYS), _FILES)
    # Now, because the checkout may change before the end.
    return {**attempt, "git": attempt.get("git") or git_state()}


def read_spec(attempt: Mapping[str, Any]) -> SpecFile:
    """Read the attempt's spec.json; `UserError` if it has another fingerprint."""
    path = Path(attempt["spec"])
    spec = retry_io(lambda: read_file(SpecFile, path, "the job on the node", ("fingerprint",)), _FILES)
    if spec["fingerprint"] != attempt["fingerprint"]:
        raise UserError(
            f"attempt.json is for fingerprint {attempt['fingerprint'][:12]}, but spec.json has "
            f"{spec['fingerprint'][:12]}; the plan has changed; submit the run again"
        )
    return spec


class Inputs:
    """The attempt's inputs.json and the paths of its files."""

    def __init__(self, attempt: Mapping[str, Any]) -> None:
        self._attempt, path = attempt, Path(attempt["inputs"])
        await_file(path)
        self.content = retry_io(lambda: read_json_object(path, "the rule `inputs`"), _FILES)
        self.data = path.parent / self.content["data"]["path"]
        self.model = path.parent / self.content["model"]["path"]
        test = self.content.get("test")
        self.test = path.parent / test["path"] if test else None
        models = self.content.get("reward_models") or {}
        self.reward_models = {key: Path(model["path"]) for key, model in models.items()}

    def require_unchanged(self) -> None:
        """`UserError` if data or models differ from the job's request, or from inputs.json, which done.json repeats."""
        requested = self._attempt.get("inputs_sha256") or {}
        for name, now in inputs_sha256(self.content).items():
            if now != (then := requested.get(name, now)):
                what = name.removesuffix("_sha256").replace("_", " ")
                raise UserError(
                    f"the {what} changed since this run was submitted: {self._attempt['inputs']} has sha256 "
                    f"{now[:12]}, not {then[:12]}; start snakemake again, which trains with the new one from step 1"
                )
        inputs = [(name, getattr(self, name), self.content.get(name) or {}) for name in ("data", "test", "model")]
        models = self.content.get("reward_models") or {}
        inputs += [(f"reward model {key}", path, models[key]) for key, path in self.reward_models.items()]
        for name, path, prepared in inputs:
            if path is None:
                continue
            sha = retry_io(functools.partial(_sha256, path), _FILES)
            if sha != prepared["sha256"]:
                got = "is not there" if sha is None else f"has sha256 {sha[:12]}, not {prepared['sha256'][:12]}"
                raise UserError(f"the {name} changed after it was prepared: {path} {got}; start snakemake again")


def _sha256(path: Path) -> str | None:
    return file_sha256(path) if path.is_file() else tree_sha256(path) if path.is_dir() else None


@dataclass(frozen=True)
class Job:
    """A started attempt: its request, and its CPUs of the node."""

    attempt: Mapping[str, Any]
    spec: SpecFile
    inputs: Inputs
    started: float
    affinity: list[int]

    @property
    def folder(self) -> Path:
        """The attempt's folder."""
        return Path(self.attempt["attempt_dir"])

    def hardware(self, threads: int) -> dict[str, Any]:
        """The node's description for done.json; `threads` are torch's after the engine started."""
        return hardware(int(self.attempt["cpus"]), threads, self.affinity)


def exit_code(train: Callable[[dict[str, Any], StopRequest], None]) -> int:
    """Train the attempt on the command line; returns its exit code (node/exit_codes.py)."""

    def main() -> None:
        attempt = read_attempt(sys.argv[1:])
        stop = StopRequest()
        stop.install()
        show_stacks_on_request()
        train(attempt, stop)

    return run(main)


def begin(attempt: Mapping[str, Any], role: str = "") -> Job:
    """Bind the job's CPUs, set its environment and check a registered stack; nothing large is imported yet.

    Each of several processes binds its share of the CPUs; the first one of each node checks the stack. A server beside
    the trainer has a `role`, which names the file of its check.
    """
    local = local_rank()[0]
    part, width, parts = cpu_share()
    affinity = pin_cpus(int(attempt["cpus"]), part, parts, width)
    job = Job(attempt, read_spec(attempt), Inputs(attempt), time.time(), affinity)
    set_environment(os.environ, job.affinity, attempt, str(job.spec["experiment"]))
    if world_size() > 1 and not job.spec["workload"].get("gpus_per_node"):
        # accelerate 1.15 names the device cpu:0, which torch cannot use to load a checkpoint.
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
    for folder in ("attempt_dir", "checkpoint_dir"):
        make = functools.partial(Path(attempt[folder]).mkdir, parents=True, exist_ok=True)
        retry_io(make, _FILES)
    if local == 0:
        node = os.environ.get("GROUP_RANK", "0")
        suffix = f"-{role}" if role else f"-node{node}" if node != "0" else ""
        stack, name = str(job.spec["stack"]), f"verify{suffix}.json"
        if job.spec["workload"].get("gpus_per_node"):
            require_working_gpus(attempt, stack, name)
        elif "python" in (stack_origin(attempt) or {}):  # registered or as found: it may have changed
            _require_verified(attempt, stack, [], name)
    return job


def stack_origin(attempt: Mapping[str, Any]) -> dict[str, Any] | None:
    """The origin and state of this process's stack; None if unknown."""
    return next(filter(None, map(_origin_in, _environments(attempt))), None)


def _origin_in(env: Path) -> dict[str, Any] | None:
    try:
        if retry_io(lambda: exists(env / "origin.json"), _STACK):
            origin = retry_io(lambda: read_json(env / "origin.json"), _STACK)
        else:
            origin = retry_io(lambda: read_json(env.parent / "verify.json"), _STACK).get("origin")
        return {"state": "built", **(origin or {})}
    except (OSError, ValueError):
        return None


def require_working_gpus(attempt: Mapping[str, Any], stack: str, name: str = "verify.json") -> None:
    """Run the stack's verify.py with this node's GPUs; `UserError` with the failed checks.

    The login node cannot run these checks. The result is the file `name` in the attempt's folder. A Python outside a
    stack is not checked.
    """
    if _verified(attempt) is not None:
        _require_verified(attempt, stack, ["--gpu"], name)


def require_working_nodes(attempt: Mapping[str, Any], stack: str, while_waiting: Callable[[], None]) -> None:
    """Run `require_working_gpus` on all other nodes of this Ray cluster in parallel, with all GPUs of each node.

    `while_waiting` is called twice a second.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not others or _verified(attempt) is None:
        return
    hosts = {}
    for node in others:
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_gpus=node["Resources"].get("GPU", 0), max_retries=0, scheduling_strategy=where)(
            _gpu_problem
        )
        hosts[task.remote(dict(attempt), stack)] = node["NodeManagerHostname"]
    waiting, problems = list(hosts), []
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.5)
        while_waiting()
        for result in done:
            try:
                problems.append(ray.get(result))
            except ray.exceptions.RayError as error:
                problems.append(f"the check of the stack {stack} on {hosts[result]} failed: {one_line(error)[:300]}")
    if failed := sorted(filter(None, problems)):
        raise UserError("; ".join(failed))


def _gpu_problem(attempt: Mapping[str, Any], stack: str) -> str:
    """Why the stack does not work on this node; empty if it works."""
    try:
        require_working_gpus(attempt, stack, f"verify-{platform.node()}.json")
    except UserError as error:
        return str(error)
    return ""


def _environments(attempt: Mapping[str, Any]) -> list[Path]:
    """Where this process's stack may be: in the attempt's command, and the environment of its Python.

    Of an image and of an environment as found the interpreter is elsewhere, and only the command names the stack.
    """
    return [*(Path(program).parents[1] for program in attempt.get("command", [])[:1]), Path(sys.prefix)]


def _verified(attempt: Mapping[str, Any]) -> Path | None:
    """The verify.json of this process's stack, beside its environment; None for a Python outside a stack."""
    files = [env.parent / "verify.json" for env in _environments(attempt)]
    return retry_io(lambda: next(filter(exists, files), None), _STACK)


def _require_verified(attempt: Mapping[str, Any], stack: str, options: list[str], name: str) -> None:
    program = Path(__file__).parents[1] / "envs" / stack / "verify.py"
    python, verified, changed = sys.executable, _verified(attempt), ""
    lock = verified and verified.with_name("requirements.lock")
    if verified and lock and retry_io(lambda: exists(lock), _STACK):  # recorded as found
        program, python = program.parents[1] / "found" / "verify.py", str(verified.parent / "env" / "bin" / "python")
        options = [*options, "--built", str(verified), "--lock", str(lock)]
        options += ["--origin", str(verified.parent / "env" / "origin.json")]
        changed = f"; if it has changed since it was recorded: `python -m workflow.stacks found {stack} --python …`"
    result = Path(attempt["attempt_dir"]) / name
    print(f"checking the stack {stack}{' with GPUs' if '--gpu' in options else ''} on this node", flush=True)
    # -I: ignores PYTHONPATH and the user's own packages, which could hide a missing package.
    command = [python, "-I", str(program), *options, "--out", str(result)]
    try:
        if subprocess.run(command, check=False, timeout=_CHECK_LIMIT_S).returncode == 0:
            return
    except subprocess.TimeoutExpired:
        raise UnfitNodeError(
            f"the stack's check {program} did not end within {_CHECK_LIMIT_S:.0f} s on {platform.node()} and was "
            "killed; the log above shows its last check. Exclude the node (exclude in the profile)"
        ) from None
    try:
        checks = retry_io(lambda: read_json(result), _FILES)["checks"]
    except (OSError, ValueError, KeyError):
        raise UnfitNodeError(f"the stack's check {program} gave no verdict on this node; see the log above") from None
    failed = [f"{c['name']}: expected {c['expected']}, got {c['got']}" for c in checks if not c["ok"]]
    raise UnfitNodeError(
        f"the stack {stack} does not work on {platform.node()}: {'; '.join(failed[:5])}. Exclude the node (exclude in "
        f"the profile), or check its driver and the modules that setup.sh loads{changed}"
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of Python and of the installed packages; a CPU build is listed under its package's name."""
    installed = {"python": platform.python_version()}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name.removesuffix("-cpu")] = importlib.metadata.version(name)
    return installed


MEASUREMENT = 3
"""The version of what the drivers' clocks contain; raised when a phase begins or ends elsewhere.

2: `generate` ends at the token ids with every engine of TRL; verl 0.9.1's `gen` is not rounded up to 2 s, and contains
a user's rewards as verl calls them, several at a time.
3: engines of different runs, processes and attempts draw different random numbers; with transformers `generate`
contains its log-probabilities, as with vLLM and SGLang.
"""


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
    """Write done.json and the log's last line; `first_step` is None if earlier attempts did all steps.

    `trainer` and `engine` are the final settings. `releases` are versions of software outside the stack's packages.
    """
    attempt = job.attempt
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
        "inputs": cast(InputsSha256, inputs_sha256(job.inputs.content)),
        "versions": {**versions(packages), **(releases or {})},
        "hardware": dict(hardware),
        # A setting may have been read from the environment, which may contain secrets.
        "resolved": {
            "trainer": without_secrets(dict(trainer)),
            "engine": without_secrets(dict(engine)),
            "environment": reported_environment(os.environ),
        },
        "git": attempt.get("git"),
        "measurement": MEASUREMENT,
    }
    # Also for a built stack: its folder may contain another environment when the report is made.
    if origin := stack_origin(attempt):
        done["stack_origin"] = origin
    retry_io(lambda: write_json(job.folder / "done.json", done), _FILES)
    print(f"done: {steps} steps, {last_step} in all", flush=True)
