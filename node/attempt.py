"""Reads what a job is given for its attempt, checks its stack on the node, and writes what it did."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.contracts import AttemptFile, DoneFile, SpecFile, read_file
from common.errors import UserError
from node.hardware import checkout
from node.records import file_sha256, read_json, tree_sha256, write_json

_CHECK_LIMIT_S = 3600.0
"""Each of verify.py's checks with a GPU has a limit of its own; this is for whatever else may hang."""
_KEYS = ("attempt", "run_id", "fingerprint", "spec", "inputs", "attempt_dir", "checkpoint_dir", "cpus")


def read_attempt(arguments: Sequence[str]) -> dict[str, Any]:
    """The attempt.json that the command line names (`arguments` without the program's name)."""
    if len(arguments) != 1:
        raise UserError(f"one argument is needed, an attempt.json, got {len(arguments)}")
    attempt = read_file(AttemptFile, Path(arguments[0]), "the job on the node", _KEYS)
    # Now, not when it is done: the checkout may be another by then.
    return {**attempt, "git": checkout()}


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
        self.told = read_json(path, "the inputs")
        self.data = path.parent / self.told["data"]["path"]
        self.model = path.parent / self.told["model"]["path"]
        test = self.told.get("test")
        self.test = path.parent / test["path"] if test else None

    def require_unchanged(self) -> None:
        """`UserError` if data or model are not what inputs.json says: done.json would name what was not trained."""
        for what, path, sha in (
            ("data", self.data, _sha256(self.data)),
            *([("test", self.test, _sha256(self.test))] if self.test is not None else []),
            ("model", self.model, tree_sha256(self.model) if self.model.is_dir() else None),
        ):
            if sha != self.told[what]["sha256"]:
                expected = self.told[what]["sha256"][:12]
                got = "is not there" if sha is None else f"has sha256 {sha[:12]}, not {expected}"
                raise UserError(f"the {what} changed after it was prepared: {path} {got}; start snakemake again")


def _sha256(path: Path) -> str | None:
    return file_sha256(path) if path.is_file() else None


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


def require_as_registered(attempt: Mapping[str, Any], stack: str) -> None:
    """Check a registered stack again: the interpreter below it may have changed since. A built one costs nothing."""
    if "python" in (stack_origin() or {}):
        _require_verified(attempt, stack, [])


def require_working_gpus(attempt: Mapping[str, Any], stack: str) -> None:
    """Run the stack's verify.py with the GPUs of this node; a `UserError` with what failed, before anything is loaded.

    The login node could only check what needs no GPU. The verdict stays in the attempt's folder. A Python that is no
    built stack's has nothing to be checked by.
    """
    built = Path(sys.prefix).parent / "verify.json"
    if not built.is_file():
        return
    if "run" not in json.loads(built.read_text(encoding="utf-8")):
        raise UserError(
            f"the stack {stack} was verified by an older rolloutbench, without its run-time environment; run "
            f"`python -m workflow.stacks build {stack}`, which verifies it again and builds nothing"
        )
    _require_verified(attempt, stack, ["--gpu"])


def _require_verified(attempt: Mapping[str, Any], stack: str, options: list[str]) -> None:
    program = Path(__file__).parents[1] / "envs" / stack / "verify.py"
    verdict = Path(attempt["attempt_dir"]) / "verify.json"
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
    attempt: Mapping[str, Any],
    inputs: Inputs,
    *,
    started: float,
    first_step: int | None,
    last_step: int,
    packages: Iterable[str],
    hardware: Mapping[str, Any],
    resolved: Mapping[str, Any],
    releases: Mapping[str, str] | None = None,
) -> None:
    """Write done.json, and a last line to the log; `first_step` is None where an earlier attempt had done them all.

    `releases` are of what is no package of the stack, beside those of `packages`.
    """
    steps = last_step - first_step + 1 if first_step else 0
    done: DoneFile = {
        "run_id": attempt["run_id"],
        "fingerprint": attempt["fingerprint"],
        "attempt": attempt["attempt"],
        "first_step": first_step or last_step + 1,
        "last_step": last_step,
        "steps": steps,
        "started": started,
        "finished": time.time(),
        "inputs": {"data_sha256": inputs.told["data"]["sha256"], "model_sha256": inputs.told["model"]["sha256"]},
        "versions": {**versions(packages), **(releases or {})},
        "hardware": dict(hardware),
        "resolved": dict(resolved),
        "git": attempt.get("git"),
    }
    # Of a built stack, too: another environment may lie in its folder when the report is made.
    if origin := stack_origin():
        done["stack_origin"] = origin
    write_json(Path(attempt["attempt_dir"]) / "done.json", done)
    print(f"done: {steps} steps, {last_step} in all", flush=True)
