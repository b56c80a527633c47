"""Builds a stack's lock into a verified environment under `.stacks/`."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from analysis.errors import UserError
from workflow.stacks import place
from workflow.stacks.compile import build_from_source, requirement
from workflow.stacks.conda import HOW_TO_GET_ONE, PROGRAMS, Conda, activated, activation, create_prefix, find_conda
from workflow.stacks.condafetch import fetch_packages
from workflow.stacks.condalock import CondaPackage, check_conda_lock
from workflow.stacks.definition import ENVS, Stack, load_stack, lock_id, verify_id
from workflow.stacks.environment import environment_in, run_time
from workflow.stacks.lockfile import Pin, check_lock
from workflow.stacks.needs import find_nvcc, require_needs
from workflow.stacks.sources import redacted
from workflow.stacks.uv import Uv, configured_uv, explained, torch_arguments

BACKENDS = ("auto", "conda", "uv")
_CONDA_FILES = ".conda-packages"
"""Folder beside the stacks in which conda's packages stay once they were fetched."""
_VERIFY_LIMIT_S = 1800
_SHOWN_FAILURES = 8


def build(
    name: str, stacks_dir: Path, envs: Path = ENVS, *, expected: str | None = None, backend: str = "auto"
) -> Path:
    """The folder of the built and verified stack, `<stacks_dir>/<name>/<lock_id>`; built if it is not there.

    A stack that is ready costs one look at its files. UserError says what failed; then nothing is left at that
    path that was not there before, and an environment that no longer verifies has no verify.json. `expected` is the
    lock_id that the plan was made with: a lock changed since then is refused. `backend`: with conda's layer, without
    it, or `auto`: with it where a program is there that installs it. One that is asked for and is not what the
    stack was built with builds it anew.
    """
    stack = load_stack(name, envs)
    pins = check_lock(name, envs)
    present = lock_id(name, envs)
    if expected not in {None, present}:
        raise UserError(
            f"{stack.lock} changed after the plan was made: {expected} was planned, the lock is now {present}; "
            "run again, and the plan is made anew"
        )
    final = stacks_dir / name / present
    wanted = backend if stack.conda_lock else "uv"  # nothing of such a stack is conda's
    if _is_ready(stack, final, wanted):
        return final
    try:
        with place.builder_lock(final.parent, name) as fds:
            place.remove_leftovers(final.parent)
            if not _is_ready(stack, final, wanted):
                _verify_or_build(stack, pins, final, wanted, fds)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise UserError(f"{name}: {redacted(str(error))}") from error
        raise UserError(f"{name}: the disk of {final.parent.resolve()} is full (or your quota is)") from None
    return final


def built_by(final: Path) -> str:
    """`conda` or `uv`: how the environment that lies there was built."""
    return "conda" if (final / "env" / "conda-meta").is_dir() else "uv"


def _is_ready(stack: Stack, final: Path, wanted: str) -> bool:
    try:
        verdict = json.loads((final / "verify.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(verdict, dict)
        and verdict.get("ok") is True
        and verdict.get("lock_id") == final.name
        and verdict.get("verify_id") == verify_id(stack)
        and wanted in {"auto", built_by(final)}
        and (final / "env" / "bin" / "python").exists()
    )


def _verify_or_build(stack: Stack, pins: list[Pin], final: Path, wanted: str, fds: tuple[int, ...]) -> None:
    packages = check_conda_lock(stack)
    if (final / "env" / "bin" / "python").exists() and wanted in {"auto", built_by(final)}:
        # It came by one rename and so was whole: only its verification is missing or out of date.
        try:
            _say(stack, "verifying the environment that is there")
            _verify(stack, final / "env", final, final.name, packages, fds)
            return
        except UserError as error:
            (final / "verify.json").unlink(missing_ok=True)
            _say(stack, f"it does not verify any more and is built anew\n{error}")
    started = time.monotonic()
    conda = _chosen(stack, wanted)
    for line in require_needs(stack, pins, packages if conda else None):
        _say(stack, f"to run it, compute nodes need what is not here: {line}")
    place.require_space(final.parent, stack.disk_gib, stack.name)
    uv = configured_uv()
    torch = next((f"torch=={pin.version}" for pin in pins if pin.name == "torch"), None)
    torch_index = torch_arguments(uv, torch, stack.torch_backend, stack.python)
    _say(stack, f"{len(pins)} packages from {uv.sources}{' and PyTorch' if torch_index else ''}")
    if conda is None:
        _build_beside(stack, pins, final, uv, torch_index, fds)
    else:
        _build_in_place(stack, pins, packages, final, conda, uv, torch_index, fds)
    _say(stack, f"ready in {time.monotonic() - started:.0f} s: {final}")


def _chosen(stack: Stack, wanted: str) -> Conda | None:
    """The program that installs the conda layer; None where there is no such layer, or it is left out."""
    if wanted == "uv":
        _say_left_out(stack, "as asked for")
        return None
    conda = find_conda()
    if conda is None and wanted == "conda":
        raise UserError(
            f"{stack.name} is to be built with its conda layer, and none of {', '.join(PROGRAMS)} is on PATH: "
            f"{HOW_TO_GET_ONE}. `envs.backend: uv` builds it without that layer, on the Python and the compilers that "
            "are here"
        )
    if conda is None:
        _say_left_out(stack, f"none of {', '.join(PROGRAMS)} is here")
    return conda


def _say_left_out(stack: Stack, why: str) -> None:
    if stack.conda_lock is None:
        return
    nvcc = f"; nvcc is {find_nvcc() or 'not here'}" if stack.cuda else ""
    _say(stack, f"without its conda layer ({why}): Python and compilers are this machine's own{nvcc}")


def _build_beside(
    stack: Stack, pins: list[Pin], final: Path, uv: Uv, torch_index: list[str], fds: tuple[int, ...]
) -> None:
    with place.building_folder(final.parent, final.name) as temporary:
        env = temporary / "env"
        _make_venv(stack, env, uv, fds)
        work = temporary / "work"
        work.mkdir()
        _install(stack, pins, env, uv, torch_index, work, fds)
        shutil.rmtree(work)
        if programs := place.foreign_paths(env / "bin", temporary.name):
            raise UserError(
                f"{stack.name}: {', '.join(programs)} in env/bin name the folder of the build and would break "
                "when it is renamed; the packages that made them cannot be part of a stack"
            )
        _say(stack, "verifying")
        _verify(stack, env, temporary, final.name, [], fds)
        place.move_into_place(temporary, final)


def _build_in_place(
    stack: Stack,
    pins: list[Pin],
    packages: list[CondaPackage],
    final: Path,
    conda: Conda,
    uv: Uv,
    torch_index: list[str],
    fds: tuple[int, ...],
) -> None:
    store = final.parent.parent / _CONDA_FILES
    with place.builder_lock(store, f"{stack.name}: conda's packages"):
        files = fetch_packages(packages, store, stack.name)
    with place.growing_prefix(final) as prefix, place.building_folder(final.parent, final.name) as work:
        prefix = prefix.absolute()  # it is written into the environment's files
        _say(stack, f"{len(packages)} conda packages, installed by {conda.name}")
        create_prefix(conda, packages, files, prefix, work, stack.name, fds)
        active = Uv(uv.binary, activated(prefix, uv.environ), uv.arguments)
        _install(stack, pins, prefix, active, torch_index, work, fds)
        _say(stack, "verifying")
        _verify(stack, prefix, work, final.name, packages, fds)
        (final / "verify.json").unlink(missing_ok=True)
        place.link_into_place(prefix, final)
        (work / "verify.json").replace(final / "verify.json")


def _make_venv(stack: Stack, env: Path, uv: Uv, fds: tuple[int, ...]) -> None:
    status, said = uv.run(
        ["venv", str(env), "--python", stack.python, "--relocatable", "--no-python-downloads", "--no-project"],
        fds=fds,
    )
    if status != 0:
        if "No interpreter found" in said:
            raise UserError(
                f"{stack.name} needs Python {stack.python}, which is not on this machine's PATH; install it (your "
                f"system's package, a module, or `uv python install {stack.python}`) and build again"
            )
        raise explained(said, f"{stack.name}: making the environment with Python {stack.python}", uv)


def _install(
    stack: Stack, pins: list[Pin], env: Path, uv: Uv, torch_index: list[str], work: Path, fds: tuple[int, ...]
) -> None:
    """The pip layer: every pin of the lock, the same in a bare environment and in one that conda made."""
    linking = Uv(uv.binary, {"UV_LINK_MODE": _link_mode(uv, env), **uv.environ}, uv.arguments)
    wheels = stack.lock
    if stack.source_builds:
        wheels = work / "wheels.txt"
        rest = [requirement(pin) for pin in pins if pin.name not in stack.source_builds]
        wheels.write_text("".join(rest), encoding="utf-8")
    # Not `pip sync`, which would take away what conda installed and the lock does not list. --no-deps: the lock is
    # complete, and what its overrides leave out stays out. Wheels only: building from source would run unpinned
    # build tools and give another result on every machine.
    command = ["pip", "install", "--require-hashes", "--no-build", "--no-deps"]
    command += ["--python", str(env / "bin" / "python"), "--break-system-packages"]
    for name in sorted(_python_packages(env) & {pin.name for pin in pins}):
        command += ["--reinstall-package", name]  # of what both layers have, the lock's file is installed
    status, said = linking.run([*command, *uv.arguments, *torch_index, "-r", str(wheels)], fds=fds, show=True)
    if status != 0:
        raise explained(said, f"{stack.name}: installing {stack.lock}", uv)
    if stack.source_builds:
        build_from_source(stack, pins, env / "bin" / "python", uv, work, fds)


def _python_packages(env: Path) -> set[str]:
    """Normalized names of the Python packages that are there already."""
    found = env.glob("lib/python*/site-packages/*.dist-info")
    return {canonicalize_name(path.name.partition("-")[0]) for path in found}


def _link_mode(uv: Uv, env: Path) -> str:
    """hardlink where uv's cache shares the environment's file system, else copy: uv warns when it finds out."""
    told = subprocess.run([uv.binary, "cache", "dir"], env=uv.environ, capture_output=True, text=True, check=False)
    cache = Path(told.stdout.strip() or ".").absolute()
    while not cache.exists():
        cache = cache.parent
    return "hardlink" if cache.stat().st_dev == env.stat().st_dev else "copy"


def verify_again(name: str, out: Path, stacks_dir: Path, envs: Path = ENVS, *, gpu: bool = False) -> Path:
    """Runs the built stack's verify.py where this runs, `gpu`: with what needs one; the verdict is written to `out`.

    UserError tells what failed. The stack's own verify.json stays as it is.
    """
    stack = load_stack(name, envs)
    final = stacks_dir / name / lock_id(name, envs)
    if not _is_ready(stack, final, "auto"):
        raise UserError(f"{name} is not built for its present lock; run `python -m workflow.stacks build {name}`")
    out.parent.mkdir(parents=True, exist_ok=True)
    packages = check_conda_lock(stack) if built_by(final) == "conda" else []
    _run_verify(stack, final / "env", out, final.name, packages, ["--gpu"] if gpu else [], ())
    return out


def _verify(
    stack: Stack, env: Path, folder: Path, lock: str, packages: list[CondaPackage], fds: tuple[int, ...]
) -> None:
    """Runs verify.py in that environment; leaves its verdict as `folder/verify.json` only when it is good."""
    verdict_path = folder / ".verify.json"
    try:
        verdict = _run_verify(stack, env, verdict_path, lock, packages, [], fds)
    except UserError:
        verdict_path.unlink(missing_ok=True)
        raise
    # What a process needs that runs in the stack without `conda activate`.
    verdict["environment"] = activation(env.absolute())
    verdict_path.write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    verdict_path.replace(folder / "verify.json")


def _run_verify(
    stack: Stack,
    env: Path,
    out: Path,
    lock: str,
    packages: list[CondaPackage],
    options: list[str],
    fds: tuple[int, ...],
) -> dict[str, Any]:
    """The verdict of verify.py in that environment, also written to `out`; UserError when it is not good."""
    out.unlink(missing_ok=True)
    backend = "conda" if (env / "conda-meta").is_dir() else "uv"
    # -I: neither PYTHONPATH nor the user's own packages may stand in for what the stack lacks.
    command = [str(env.absolute() / "bin" / "python"), "-I", str(stack.verify.absolute()), *options]
    command += ["--stack", stack.name, "--lock", str(stack.lock.absolute()), "--lock-id", lock]
    command += ["--python-version", stack.python, "--verify-id", verify_id(stack), "--backend", backend]
    command += ["--cuda", stack.cuda] if stack.cuda else []
    command += ["--out", str(out.absolute())]
    listed = out.with_name(f"{out.name}.conda")
    if backend == "conda":
        listed.write_text(json.dumps([_shown(package) for package in packages]), encoding="utf-8")
        command += ["--conda", str(listed.absolute())]
    run = run_time(stack, lock, env)
    command += ["--run", json.dumps(run)]
    # As every process in the stack has it: what passes here by another environment would fail in a job.
    environ = environment_in(env.absolute(), {"environment": activation(env.absolute()), "run": run}, os.environ)
    environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    try:
        done = subprocess.run(
            command,
            env=environ,
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_VERIFY_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{stack.name}: verify.py gave no answer in {_VERIFY_LIMIT_S} s") from None
    finally:
        listed.unlink(missing_ok=True)
    try:
        verdict: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(_no_verdict(stack, done.returncode, done.stdout)) from None
    if done.returncode != 0 or verdict.get("ok") is not True:
        raise UserError(_failed_checks(stack, verdict))
    return verdict


def _shown(package: CondaPackage) -> dict[str, Any]:
    return {key: value for key, value in asdict(package).items() if key != "needs"}


def _no_verdict(stack: Stack, status: int, said: str) -> str:
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    last = "\n".join(f"  {line}" for line in said.strip().splitlines()[-12:])
    return f"{stack.name}: {stack.verify} {how} and gave no verdict; it said last:\n{last}"


def _failed_checks(stack: Stack, verdict: dict[str, Any]) -> str:
    failed = [check for check in verdict.get("checks", []) if not check["ok"]]
    lines = [
        f"  {stack.folder.name}/{check['source']}: {check['name']}: expected {check['expected']}, got {check['got']}"
        for check in failed[:_SHOWN_FAILURES]
    ]
    if len(failed) > _SHOWN_FAILURES:
        lines.append(f"  and {len(failed) - _SHOWN_FAILURES} more")
    return "\n".join([f"{stack.name} does not verify: {len(failed)} of {len(verdict['checks'])} checks failed", *lines])


def _say(stack: Stack, text: str) -> None:
    print(f"{stack.name}: {text}", file=sys.stderr, flush=True)
