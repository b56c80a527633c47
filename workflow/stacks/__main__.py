"""`python -m workflow.stacks`: builds stacks, verifies them, checks and refreshes locks, records an environment."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from common.errors import UserError
from common.ownership import let_others_only_read
from common.shown import shown_output
from workflow.stacks.build import BACKENDS, build
from workflow.stacks.conda import check_conda_lock
from workflow.stacks.definition import ENVS, STACKS, load_stack
from workflow.stacks.found import doubts, make_ready, record
from workflow.stacks.lockfile import check_lock, env_names, refresh_locks
from workflow.stacks.needs import missing_needs
from workflow.stacks.verification import verify_again


@shown_output()
def main(arguments: list[str] | None = None) -> int:
    """Runs one command; exit code 0 on success, 1 for an error that the user can correct, 128+n after a signal."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)
    let_others_only_read()
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {given.command}: {error.filename}: {error.strerror}; correct the path", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _build(given: argparse.Namespace) -> None:
    print(build(given.name, given.stacks_dir, given.envs, expected=given.expect, backend=given.backend))


def _verify(given: argparse.Namespace) -> None:
    print(verify_again(given.name, given.out, given.stacks_dir, given.envs, gpu=given.gpu))


def _check(given: argparse.Namespace) -> None:
    names = [given.name] if given.name else env_names(given.envs)
    if not names:
        raise UserError(f"no environment with a lock is in {given.envs}; give --envs a folder such as envs")
    for name in names:
        stack = load_stack(name, given.envs) if (given.envs / name / "stack.yaml").is_file() else None
        lacks = missing_needs(stack.run_needs, stack) if stack and given.name else []
        if given.debian:
            print(*(lack["debian"] for lack in lacks if lack["debian"]), sep="\n", end="")
            continue
        pins, packages = check_lock(name, given.envs), check_conda_lock(stack) if stack else []
        conda = f", {len(packages)} conda packages" if packages else ""
        print(f"{name}: {len(pins)} pins{conda}, in order")
        for lack in lacks:
            print(f"{name}: this machine lacks what runs need: {lack['line']}")


def _lock(given: argparse.Namespace) -> None:
    for path in refresh_locks(given.name, given.envs, upgrade=given.upgrade):
        print(path)


def _found(given: argparse.Namespace) -> None:
    stack = record(given.name, given.python, trainer=given.trainer, engine=given.engine)
    stack.log(
        f"{stack.trainer} {stack.trainer_version} with {stack.engine}, Python {stack.python}, "
        f"{f'CUDA {stack.cuda}' if stack.cuda else 'for a CPU'}; recorded in {stack.folder}"
    )
    for line in doubts(stack):
        stack.log(line)
    print(make_ready(stack))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workflow.stacks", description=__doc__)
    parser.add_argument("--envs", type=Path, default=ENVS, help="folder of the definitions (default: the repository's)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    stacks = argparse.ArgumentParser(add_help=False)
    stacks.add_argument("--stacks-dir", type=Path, default=STACKS, help="folder of the stacks (default: .stacks)")

    def command(run: Any, text: str, *shared: argparse.ArgumentParser, names: str | None = None) -> Any:
        sub = commands.add_parser(run.__name__.removeprefix("_"), help=text, parents=shared)
        sub.add_argument("name", nargs=names)
        sub.set_defaults(run=run)
        return sub.add_argument

    add = command(_build, "build and verify a stack unless it is ready; print its folder", stacks)
    add("--expect", metavar="LOCK_ID", help="fail if the lock has another id")
    text = "conda: with the conda layer, uv: without it, auto: with it if a conda program exists (default)"
    add("--backend", choices=BACKENDS, default="auto", help=text)
    add = command(_verify, "run a built stack's checks on this machine; on a compute node with --gpu", stacks)
    add("--gpu", action="store_true", help="also run the checks that need a GPU")
    add("--out", type=Path, required=True, help="file for the verdict")
    add = command(_check, "check a lock, or all, and that this machine has what a stack's runs need", names="?")
    add("--debian", action="store_true", help="print only the Debian packages that this machine lacks")
    add = command(_lock, "resolve requirements.in and environment.yml again; pins that still fit stay")
    add("--upgrade", action="store_true", help="take the newest versions that fit")
    add = command(_found, "use an environment that works as it is, without a lock; trains by its name")
    add("--python", type=Path, required=True, help="its interpreter, or its folder; nothing is written into it")
    add("--trainer", help="if it has several (trl, verl, swift), or replay: an engine alone")
    add("--engine", help="if it has several (vllm, sglang, transformers)")
    return parser


def _stop(number: int, frame: FrameType | None) -> None:
    # The exception ends uv, and lets go of the lock.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
