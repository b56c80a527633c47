"""Runs a stack's verify.py in its environment, and reads verify.json."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import write_json
from workflow.stacks.conda import CondaPackage, activation, check_conda_lock
from workflow.stacks.definition import ENVS, STACKS, Stack, built_dir, load_stack, verify_id
from workflow.stacks.environment import environment_in, run_time
from workflow.stacks.uv import end_of_output

ORIGIN = "origin.json"
"""File with the environment's origin; it lies in the environment's folder, so both appear and vanish together."""
FOUND = "as found, not built from a lock"
"""The state of an environment that found.py recorded."""
_SHOWN_FAILURES = 8


@dataclass(frozen=True)
class BuiltEnvironment:
    """An environment to verify."""

    stack: Stack
    env: Path
    lock_id: str
    packages: Sequence[CondaPackage]
    """The packages of its conda layer."""
    origin: Mapping[str, Any]
    """Its origin, as returned by `origin_of`."""
    fds: tuple[int, ...] = ()
    """Locks that verify.py holds too."""

    @property
    def prefix(self) -> Path:
        """Where its packages are: `env`, or the environment that was recorded as found."""
        return self.stack.found_prefix or self.env.absolute()

    @property
    def variables(self) -> dict[str, str]:
        """Those of its processes: they run without `conda activate`, and write nothing into an environment as found."""
        own = {"PYTHONPYCACHEPREFIX": str(self.env.absolute().parent / "pycache")}
        return {**activation(self.prefix), **(own if self.stack.found_python else {})}


def built_by(final: Path) -> str:
    """The backend that built the environment in that folder: `conda` or `uv`."""
    return "conda" if (final / "env" / "conda-meta").is_dir() else "uv"


def _object_in(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if it is missing or damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def origin_of(final: Path) -> dict[str, Any]:
    """The environment's origin, such as an image; empty for a build from the lock.

    It is read from env/origin.json: Snakemake deletes verify.json before it repeats a rule.
    """
    return _object_in(final / "env" / ORIGIN)


def was_chosen(origin: Mapping[str, Any]) -> bool:
    """True if the user adopted this environment; a build must not replace it."""
    return bool(origin.get("state", "built") != "built")


def stack_notes(names: Iterable[str]) -> list[str]:
    """One line for each of those stacks that is adopted or as found."""
    lines = []
    for name in dict.fromkeys(names):
        try:
            stack = load_stack(name)
            origin = origin_of(built_dir(stack, STACKS))
        except UserError:  # an old experiment may name a stack that no longer exists
            continue
        if stack.found_python:  # also before it is verified
            origin = {"state": FOUND, "python": str(stack.found_python)}
        if was_chosen(origin):
            lines.append(f"stack {name}: {origin['state']} ({origin.get('python') or origin.get('image')})")
    return lines


def is_ready(stack: Stack, final: Path, wanted: str) -> bool:
    """True if the environment is built with the wanted backend and its verification is up to date."""
    verdict = _object_in(final / "verify.json")
    return (
        verdict.get("ok") is True
        and verdict.get("lock_id") == final.name
        and verdict.get("verify_id") == verify_id(stack)
        and wanted in {"auto", built_by(final)}
        and (final / "env" / "bin" / "python").exists()
    )


def require_verified(stacks: Iterable[tuple[str, str]]) -> None:
    """UserError if one of those stacks (name, lock_id) was verified with other than the current checks or settings.

    Snakemake only checks that verify.json exists.
    """
    for name, lock in dict.fromkeys(stacks):
        final = STACKS / name / lock
        if (final / "verify.json").exists() and not is_ready(load_stack(name), final, "auto"):
            raise UserError(
                f"the checks or run-time settings of stack {name} changed after its verification; run "
                f"`python -m workflow.stacks build {name}`, which verifies it again (and builds it only if that "
                "fails), and start again"
            )


def verify_again(name: str, out: Path, stacks_dir: Path, envs: Path = ENVS, *, gpu: bool = False) -> Path:
    """Runs the built stack's verify.py on this machine and writes the verdict to `out`; `gpu` adds the GPU checks.

    UserError lists the failed checks. The stack's own verify.json does not change.
    """
    stack = load_stack(name, envs)
    final = built_dir(stack, stacks_dir)
    if not is_ready(stack, final, "auto"):
        raise UserError(f"{name} is not built for its current lock; run `python -m workflow.stacks build {name}`")
    out.parent.mkdir(parents=True, exist_ok=True)
    packages = check_conda_lock(stack) if stack.found_python or built_by(final) == "conda" else []
    _run_verify(BuiltEnvironment(stack, final / "env", final.name, packages, origin_of(final)), out, gpu=gpu)
    return out


def verify(found: BuiltEnvironment, folder: Path) -> None:
    """Runs verify.py in that environment; writes `env/origin.json` and `folder/verify.json` only if it passes."""
    verdict_path = folder / ".verify.json"
    try:
        verdict = _run_verify(found, verdict_path)
    except UserError:
        verdict_path.unlink(missing_ok=True)
        raise
    verdict["environment"] = found.variables
    write_json(found.env / ORIGIN, dict(found.origin))
    write_json(folder / "verify.json", verdict)
    verdict_path.unlink()


def _run_verify(found: BuiltEnvironment, out: Path, *, gpu: bool = False) -> dict[str, Any]:
    """Runs verify.py, which writes its verdict to `out`; returns the verdict, or raises UserError if a check failed."""
    out.unlink(missing_ok=True)
    stack, env = found.stack, found.env.absolute()
    run = run_time(stack, found.lock_id, env)
    # Jobs run with the same variables, so that a passed check is valid there.
    environ = environment_in(env, {"environment": found.variables, "run": run}, os.environ)
    environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    limit_s = 3600 if gpu else 1800  # a GPU check may compile FlashInfer's and SGLang's kernels for minutes
    with tempfile.TemporaryDirectory() as folder:
        command = [*_command(found, env, out, Path(folder)), "--run", json.dumps(run), *(["--gpu"] if gpu else [])]
        try:
            done = subprocess.run(
                command,
                env=environ,
                pass_fds=found.fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{stack.name}: verify.py did not finish in {limit_s} s") from None
    try:
        verdict: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        status = done.returncode
        ending = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        output = end_of_output(done.stdout)
        raise UserError(
            f"{stack.name}: {stack.verify} {ending} without a verdict; end of its output:\n{output}"
        ) from None
    if done.returncode != 0 or verdict.get("ok") is not True:
        raise UserError(_failed_checks(stack, verdict))
    return verdict


def _command(found: BuiltEnvironment, env: Path, out: Path, folder: Path) -> list[str]:
    """The command that runs verify.py; long arguments are files in `folder`."""
    stack, without_conda = found.stack, "pip" if found.stack.found_python else "uv"
    backend = "conda" if (found.prefix / "conda-meta").is_dir() else without_conda
    # -I ignores PYTHONPATH and the user's own packages, which would hide missing packages.
    command = [str(env / "bin" / "python"), "-I", str(stack.verify.absolute())]
    command += ["--stack", stack.name, "--lock", str(stack.lock.absolute()), "--lock-id", found.lock_id]
    command += ["--python-version", stack.python, "--verify-id", verify_id(stack), "--backend", backend]
    command += ["--cuda", stack.cuda] if stack.cuda else []
    write_json(folder / "origin.json", dict(found.origin))
    command += ["--out", str(out.absolute()), "--origin", str(folder / "origin.json")]
    if backend == "conda":
        shown = [{key: value for key, value in vars(package).items() if key != "needs"} for package in found.packages]
        write_json(folder / "conda.json", shown)
        command += ["--conda", str(folder / "conda.json")]
    return command


def _failed_checks(stack: Stack, verdict: dict[str, Any]) -> str:
    failed = [check for check in verdict.get("checks", []) if not check["ok"]]
    lines = [
        f"  {stack.name}/{check['source']}: {check['name']}: expected {check['expected']}, got {check['got']}"
        for check in failed[:_SHOWN_FAILURES]
    ]
    if len(failed) > _SHOWN_FAILURES:
        lines.append(f"  and {len(failed) - _SHOWN_FAILURES} more")
    return "\n".join(
        [f"{stack.name} fails its verification: {len(failed)} of {len(verdict['checks'])} checks failed", *lines]
    )
