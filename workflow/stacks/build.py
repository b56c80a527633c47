"""How does a stack's lock become a verified environment under `.stacks/`?"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from analysis.errors import UserError
from workflow.stacks import place
from workflow.stacks.definition import ENVS, Stack, load_stack, lock_id, verify_id
from workflow.stacks.lockfile import Pin, check_lock
from workflow.stacks.sources import redacted
from workflow.stacks.uv import Uv, configured_uv, explained, torch_arguments

_VERIFY_LIMIT_S = 1800
_SHOWN_FAILURES = 8


def build(name: str, stacks_dir: Path, envs: Path = ENVS, *, expected: str | None = None) -> Path:
    """The folder of the built and verified stack, `<stacks_dir>/<name>/<lock_id>`; built if it is not there.

    A stack that is ready costs one look at its files. UserError says what failed; then nothing is left at that
    path that was not there before, and an environment that no longer verifies has no verify.json. `expected` is the
    lock_id that the plan was made with: a lock changed since then is refused.
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
    if _is_ready(stack, final):
        return final
    try:
        with place.builder_lock(final.parent, name) as fds:
            place.remove_leftovers(final.parent)
            if not _is_ready(stack, final):
                _verify_or_build(stack, pins, final, fds)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise UserError(f"{name}: {redacted(str(error))}") from error
        raise UserError(f"{name}: the disk of {final.parent.resolve()} is full (or your quota is)") from None
    return final


def _is_ready(stack: Stack, final: Path) -> bool:
    try:
        verdict = json.loads((final / "verify.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(verdict, dict)
        and verdict.get("ok") is True
        and verdict.get("lock_id") == final.name
        and verdict.get("verify_id") == verify_id(stack)
        and (final / "env" / "bin" / "python").exists()
    )


def _verify_or_build(stack: Stack, pins: list[Pin], final: Path, fds: tuple[int, ...]) -> None:
    if (final / "env" / "bin" / "python").exists():
        # It came by one rename and so was whole: only its verification is missing or out of date.
        try:
            _say(stack, "verifying the environment that is there")
            _verify(stack, final, final.name, fds)
            return
        except UserError as error:
            (final / "verify.json").unlink(missing_ok=True)
            _say(stack, f"it does not verify any more and is built anew\n{error}")
    started = time.monotonic()
    place.require_space(final.parent, stack.disk_gib, stack.name)
    uv = configured_uv()
    torch = next((f"torch=={pin.version}" for pin in pins if pin.name == "torch"), None)
    backend = torch_arguments(uv, torch, stack.torch_backend, stack.python)
    _say(stack, f"{len(pins)} packages from {uv.sources}{' and PyTorch' if backend else ''}")
    with place.building_folder(final.parent, final.name) as temporary:
        _install(stack, temporary / "env", uv, backend, fds)
        if programs := place.foreign_paths(temporary / "env" / "bin", temporary.name):
            raise UserError(
                f"{stack.name}: {', '.join(programs)} in env/bin name the folder of the build and would break "
                "when it is renamed; the packages that made them cannot be part of a stack"
            )
        _say(stack, "verifying")
        _verify(stack, temporary, final.name, fds)
        place.move_into_place(temporary, final)
    _say(stack, f"ready in {time.monotonic() - started:.0f} s: {final}")


def _install(stack: Stack, env: Path, uv: Uv, backend: list[str], fds: tuple[int, ...]) -> None:
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
        raise explained(said, f"{stack.name}: making the environment", uv)
    linking = Uv(uv.binary, {"UV_LINK_MODE": _link_mode(uv, env), **uv.environ}, uv.arguments)
    # Wheels only: building from source would run unpinned build tools and give another result on every machine.
    command = ["pip", "sync", "--require-hashes", "--no-build", "--python", str(env / "bin" / "python")]
    status, said = linking.run([*command, *uv.arguments, *backend, str(stack.lock)], fds=fds, show=True)
    if status != 0:
        raise explained(said, f"{stack.name}: installing {stack.lock}", uv)


def _link_mode(uv: Uv, env: Path) -> str:
    """hardlink where uv's cache shares the environment's file system, else copy: uv warns when it finds out."""
    told = subprocess.run([uv.binary, "cache", "dir"], env=uv.environ, capture_output=True, text=True, check=False)
    cache = Path(told.stdout.strip() or ".").absolute()
    while not cache.exists():
        cache = cache.parent
    return "hardlink" if cache.stat().st_dev == env.stat().st_dev else "copy"


def _verify(stack: Stack, folder: Path, lock: str, fds: tuple[int, ...]) -> None:
    """Runs verify.py in `folder/env`; leaves its verdict as `folder/verify.json` only when it is good."""
    verdict_path = folder / ".verify.json"
    verdict_path.unlink(missing_ok=True)
    # -I: neither PYTHONPATH nor the user's own packages may stand in for what the stack lacks.
    command = [str(folder.absolute() / "env" / "bin" / "python"), "-I", str(stack.verify)]
    command += ["--stack", stack.name, "--lock", str(stack.lock), "--lock-id", lock]
    command += ["--python-version", stack.python, "--verify-id", verify_id(stack), "--out", str(verdict_path)]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
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
    try:
        verdict: dict[str, Any] = json.loads(verdict_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(_no_verdict(stack, done.returncode, done.stdout)) from None
    if done.returncode != 0 or verdict.get("ok") is not True:
        verdict_path.unlink()
        raise UserError(_failed_checks(stack, verdict))
    verdict_path.replace(folder / "verify.json")


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
