"""Runs our modules in a built stack, verify.py first of all, and reads and writes its verify.json."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT, module_command, write_json
from common.messages import join_first
from common.stack_environment import ENV, environment_in, stack_environment
from workflow.stacks.conda import CondaPackage, activation, check_conda_lock
from workflow.stacks.definition import ENVS, SITE_PACKAGES, STACKS, Stack, built_dir, load_stack, verify_id
from workflow.stacks.uv import end_of_output

ORIGIN = "origin.json"
"""File with the environment's origin, in its folder: written when it is complete and has passed its checks."""
FOUND = "as found, not built from a lock"
"""The state of an environment that found.py recorded."""
CONDA = "{conda}"
"""Placeholder in `run_paths` for the conda prefix; without a conda layer the path is left out."""
_SHOWN_FAILURES = 8
_FILES = ENVS / "_files.py"
_PACKAGES = "lib/python*/site-packages"


@dataclass(frozen=True)
class BuiltEnvironment:
    """An environment to verify."""

    stack: Stack
    env: Path
    lock_id: str
    packages: Sequence[CondaPackage]
    """The packages of its conda layer."""
    origin: Mapping[str, Any]
    """What it is, if it is as found; empty for a build from the lock."""
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


def is_complete(final: Path) -> bool:
    """Whether the environment in that folder was once installed and verified: from then on jobs may use it."""
    return (final / "env" / ORIGIN).is_file() and (final / "env" / "bin" / "python").exists()


def verdict_file(stack: Stack, final: Path) -> Path:
    """The verdict of the current checks, which is there once they have passed."""
    return final / f"verify-{verify_id(stack)}.json"


def is_ready(stack: Stack, final: Path) -> bool:
    """Whether the environment is complete and has passed the current checks, whose verdict is then in force."""
    verdict, in_force = verdict_file(stack, final), final / "verify.json"
    if not is_complete(final) or not verdict.is_file():
        return False
    if not in_force.is_file() or in_force.read_bytes() != verdict.read_bytes():
        try:
            _put_in_force(verdict)  # other checks have passed since
        except OSError as error:
            raise UserError(f"{in_force} cannot be written ({error.strerror}), and is of other checks") from None
    return True


def _put_in_force(verdict: Path) -> None:
    """Makes it the verify.json that jobs read, with its date: what is newer has changed since."""
    part = verdict.with_name(f".verify-{os.getpid()}.json")
    shutil.copy2(verdict, part)
    part.replace(verdict.with_name("verify.json"))


def require_backend(stack: Stack, final: Path, backend: str) -> None:
    """UserError if the environment is there, and is built with another backend than the experiment asks for."""
    if stack.conda_lock and is_complete(final) and backend not in ("auto", built_by(final)):
        raise UserError(
            f"envs.backend is {backend}, but {stack.name} is built with {built_by(final)}: set that, or, "
            f"if no run uses it, remove it and it is built again: rm -r {final}"
        )


def stack_notes(names: Iterable[str]) -> list[str]:
    """One line for each of those stacks that is as found."""
    lines = []
    for name in dict.fromkeys(names):
        with contextlib.suppress(UserError):  # an old experiment may name a stack that no longer exists
            stack = load_stack(name)
            if stack.found_python:
                lines.append(f"stack {name}: {FOUND} ({stack.found_python})")
    return lines


def require_as_verified(stacks: Iterable[tuple[str, str]], backend: str) -> None:
    """UserError if one of those stacks (name, lock_id) was built otherwise, or edited since its verification."""
    for name, lock in dict.fromkeys(stacks):
        stack, final = load_stack(name), STACKS / name / lock
        require_backend(stack, final, backend)
        if stack.found_python or not is_ready(stack, final):
            continue
        since = (final / "verify.json").stat().st_mtime
        command = [sys.executable, "-I", str(_FILES), str(since), *map(str, final.glob(f"env/{_PACKAGES}"))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        if edited := done.stdout.splitlines():
            raise UserError(
                f"files of stack {name} have changed since it was verified: {join_first(edited, 3)}; remove it, and it "
                f"is built again (rm -r {final}), or record it as another stack: "
                f"`python -m workflow.stacks found NAME --python {final}/env/bin/python`"
            )


def verify_again(name: str, out: Path, stacks_dir: Path, envs: Path = ENVS, *, gpu: bool = False) -> Path:
    """Runs the built stack's verify.py on this machine and writes the verdict to `out`; `gpu` adds the GPU checks.

    UserError lists the failed checks. The stack's own verify.json does not change.
    """
    stack = load_stack(name, envs)
    final = built_dir(stack, stacks_dir)
    if not is_ready(stack, final):
        raise UserError(f"{name} is not built for its current lock; run `python -m workflow.stacks build {name}`")
    out.parent.mkdir(parents=True, exist_ok=True)
    packages = check_conda_lock(stack) if stack.found_python or built_by(final) == "conda" else []
    origin = json.loads((final / "env" / ORIGIN).read_text(encoding="utf-8"))
    _run_verify(BuiltEnvironment(stack, final / "env", final.name, packages, origin), out, gpu=gpu)
    return out


def verify(found: BuiltEnvironment, final: Path) -> None:
    """Runs verify.py in that environment, twice if need be; writes its verdict to `final` only if it passes."""
    out = final / ".verify.json"
    try:
        try:
            verdict = _run_verify(found, out)
        except UserError as error:
            # A busy machine can fail a check once: a limit of time, or of memory.
            found.stack.log(f"{error}\n{found.stack.name}: verifying once more")
            verdict = _run_verify(found, out)
    finally:
        out.unlink(missing_ok=True)
    verdict["environment"] = found.variables
    write_json(found.env / ORIGIN, dict(found.origin))
    write_json(passed := verdict_file(found.stack, final), verdict)
    _put_in_force(passed)


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
        write_json(facts := Path(folder) / "facts.json", _facts(found, run))
        # -I ignores PYTHONPATH and the user's own packages, which would hide missing packages.
        command = [str(env / "bin" / "python"), "-I", str(stack.verify.absolute()), "--built", str(facts)]
        command += ["--lock", str(stack.lock.absolute()), "--out", str(out.absolute()), *(["--gpu"] if gpu else [])]
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


def _facts(found: BuiltEnvironment, run: Mapping[str, Any]) -> dict[str, Any]:
    """What verify.py is told; all of it is in its verdict."""
    stack, without_conda = found.stack, "pip" if found.stack.found_python else "uv"
    conda = (found.prefix / "conda-meta").is_dir()
    return {
        "stack": stack.name,
        "lock_id": found.lock_id,
        "verify_id": verify_id(stack),
        "python_release": stack.python,
        "backend": "conda" if conda else without_conda,
        "cuda": stack.cuda,
        "conda": [_shown(package) for package in found.packages] if conda else [],
        "run": run,
        "origin": dict(found.origin),
    }


def _shown(package: CondaPackage) -> dict[str, Any]:
    return {key: value for key, value in vars(package).items() if key != "needs"}


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


def run_in_stack(stack_file: Path, module: str, *arguments: str | Path, **options: Any) -> bool:
    """Runs a module of ours in the stack of that verify.json; True if it succeeded.

    Its output is shown, unless `options` of subprocess.run say otherwise.
    """
    python = stack_file.parent / "env" / "bin" / "python"
    env = stack_environment(stack_file, os.environ) | {"PYTHONPATH": str(ROOT)}
    command = [python, *module_command(module)[-2:], *arguments]
    return subprocess.run(command, env=env, check=False, **options).returncode == 0


def run_time(stack: Stack, lock: str, env: Path) -> dict[str, Any]:
    """The `run` section of verify.json: the stack's paths, caches and needs, resolved for the environment in `env`."""
    below_packages = any(SITE_PACKAGES in path for listed in stack.run_paths.values() for path in listed)
    packages = _packages(env) if below_packages else ""
    layer = (env / "conda-meta").is_dir()
    paths = {
        variable: [
            path.replace(CONDA, ENV).replace(SITE_PACKAGES, packages) for path in listed if layer or CONDA not in path
        ]
        for variable, listed in stack.run_paths.items()
    }
    return {
        "paths": {variable: found for variable, found in paths.items() if found},
        "caches": dict(stack.run_caches),
        "cache": f"{stack.name}-{lock}",
        "needs": list(stack.run_needs),
    }


def _packages(env: Path) -> str:
    """The folder of the environment's packages, with the placeholder for the environment; an image keeps its path."""
    python = env.absolute() / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-I", "-c", ask], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{python} does not run: {done.stderr.strip()[-500:]}")
    folder = done.stdout.strip()
    own = next((one for one in (str(env.absolute()), str(env.resolve())) if folder.startswith(f"{one}/")), None)
    return folder if own is None else ENV + folder.removeprefix(own)
