"""`python -m workflow.stacks`: build a stack, check or refresh a lock, print a stack's interpreter."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from common.errors import UserError
from workflow.stacks import container, join, wheelhouse
from workflow.stacks.adopt import adopt
from workflow.stacks.build import BACKENDS, build
from workflow.stacks.condalock import check_conda_lock
from workflow.stacks.definition import ENVS, load_stack, stack_python
from workflow.stacks.distfiles import Target
from workflow.stacks.lockfile import check_lock, env_names
from workflow.stacks.needs import missing
from workflow.stacks.refresh import refresh_conda_lock, refresh_lock
from workflow.stacks.register import register
from workflow.stacks.verification import verify_again
from workflow.stacks.wheels import wheel_pairs


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; 0 when it is done, 1 for a mistake that the user can mend, 128+n after a signal."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)
    chosen = _parser().parse_args(arguments)
    if chosen.command == "join":
        return join.main([*chosen.parts, "--out", chosen.out])
    try:
        _run(chosen)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {chosen.command}: {error.filename}: {error.strerror}; correct the path", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _run(chosen: argparse.Namespace) -> None:
    match chosen.command:
        case "build":
            wheels = wheel_pairs(chosen.wheel, chosen.sha256)
            how = {"expected": chosen.expect, "backend": chosen.backend, "wheels": wheels}
            print(build(chosen.name, chosen.stacks_dir, chosen.envs, **how))
        case "verify":
            print(verify_again(chosen.name, chosen.out, chosen.stacks_dir, chosen.envs, gpu=chosen.gpu))
        case "check":
            if chosen.all == bool(chosen.name):
                raise UserError("name one environment, or give --all")
            names = env_names(chosen.envs) if chosen.all else [chosen.name]
            if not names:
                raise UserError(f"no environment with a lock is in {chosen.envs}; give --envs a folder such as envs")
            for name in names:
                print(f"{name}: {len(check_lock(name, chosen.envs))} pins{_conda_checked(name, chosen.envs)}, in order")
        case "lock":
            print(refresh_lock(chosen.name, chosen.envs, upgrade=chosen.upgrade))
            if path := refresh_conda_lock(chosen.name, chosen.envs):
                print(path)
        case "python":
            path = stack_python(chosen.name, chosen.stacks_dir, chosen.envs)
            if not path.exists():
                raise UserError(
                    f"{chosen.name} is not built for its present lock; "
                    f"run `python -m workflow.stacks build {chosen.name} --stacks-dir {chosen.stacks_dir}`"
                )
            print(path)
        case "needs":
            stack = load_stack(chosen.name, chosen.envs)
            lacks = missing(stack.run_needs, stack)
            for text in [lack["debian"] or "" if chosen.debian else lack["line"] for lack in lacks]:
                print(text)
        case "wheelhouse":
            if chosen.part_mb is not None and not chosen.part_mb > 0:  # before gigabytes are fetched
                raise UserError(f"--part-mb must be more than 0 (got {chosen.part_mb:g})")
            given = load_stack(chosen.name, chosen.envs).python, wheelhouse.default_platform()
            target = Target(chosen.python or given[0], chosen.platform or given[1])
            selection = wheelhouse.select(chosen.name, target, chosen.have, chosen.envs)
            if chosen.list:
                print(wheelhouse.listed(selection))
            else:
                print(wheelhouse.collect(selection, chosen.out or Path("wheelhouse") / chosen.name, chosen.part_mb))
        case "adopt":
            print(adopt(chosen.name, chosen.image, chosen.stacks_dir, chosen.envs))
        case "register":
            print(
                register(
                    chosen.name,
                    chosen.python,
                    chosen.stacks_dir,
                    chosen.envs,
                    accept=chosen.accept,
                    overlay=chosen.overlay,
                    leave_out=chosen.leave_out,
                    find_links=chosen.find_links,
                    wheels=wheel_pairs(chosen.wheel, chosen.sha256),
                )
            )
        case "container":
            text = container.definition(chosen.name, chosen.envs, chosen.base)
            if chosen.out is None:
                print(text, end="")
            else:
                chosen.out.parent.mkdir(parents=True, exist_ok=True)
                chosen.out.write_text(text, encoding="utf-8")
                print(chosen.out)


def _conda_checked(name: str, envs: Path) -> str:
    if not (envs / name / "stack.yaml").is_file():
        return ""
    packages = check_conda_lock(load_stack(name, envs))
    return f", {len(packages)} conda packages" if packages else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workflow.stacks", description=__doc__)
    parser.add_argument("--envs", type=Path, default=ENVS, help="folder of the definitions (default: the repository's)")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, help_text in [
        ("build", "build and verify a stack, unless it is ready; print its folder"),
        ("python", "print the interpreter of a built stack"),
        ("verify", "run a built stack's checks again, here: on a compute node with --gpu"),
    ]:
        sub = commands.add_parser(command, help=help_text)
        sub.add_argument("name")
        sub.add_argument("--stacks-dir", type=Path, default=Path(".stacks"), help="where stacks lie (default: .stacks)")
        if command == "build":
            sub.add_argument("--expect", metavar="LOCK_ID", help="refuse to build any other lock than this one")
            sub.add_argument(
                "--backend",
                choices=BACKENDS,
                default="auto",
                help="with the conda layer, without it, or as this machine allows (default)",
            )
            _add_wheels(sub)
        if command == "verify":
            sub.add_argument("--gpu", action="store_true", help="also what needs a GPU")
            sub.add_argument("--out", type=Path, required=True, help="file for the verdict")
    check = commands.add_parser("check", help="does a lock fulfil its requirements.in?")
    check.add_argument("name", nargs="?")
    check.add_argument("--all", action="store_true", help="every environment that has a lock")
    lock = commands.add_parser("lock", help="resolve requirements.in anew; pins that still fit stay")
    lock.add_argument("name")
    lock.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    needs = commands.add_parser("needs", help="what this machine lacks to run a stack, one line each, with its remedy")
    needs.add_argument("name")
    needs.add_argument("--debian", action="store_true", help="only the names of Debian's packages")
    house = commands.add_parser("wheelhouse", help="collect a stack's wheels for a machine without a network")
    house.add_argument("name")
    house.add_argument("--out", type=Path, help="default: wheelhouse/<name>")
    house.add_argument("--part-mb", type=float, help="also make parts of at most so many MB (10^6 bytes)")
    house.add_argument("--python", help="feature release on the target (default: the stack's)")
    house.add_argument("--platform", help="of the target (default: manylinux_2_28 of this machine's processor)")
    house.add_argument("--have", help="what the target has: a `pip freeze` file, or name==version,…")
    house.add_argument("--list", action="store_true", help="only print the files and their sizes")
    joined = commands.add_parser("join", help="join and check the parts of a wheelhouse (as part-01/join.py does)")
    joined.add_argument("parts", nargs="+")
    joined.add_argument("--out", required=True)
    image = commands.add_parser("container", help="an Apptainer definition that builds the stack from its lock")
    image.add_argument("name")
    image.add_argument("--out", type=Path, help="file to write (default: print it)")
    image.add_argument("--base", help="base image, as in docker://name@sha256:… (default: one with the stack's CUDA)")
    adopted = commands.add_parser("adopt", help="use an Apptainer image of the stack in place of a build")
    adopted.add_argument("name")
    adopted.add_argument("--image", type=Path, required=True, help="the image, a .sif file or a folder")
    adopted.add_argument("--stacks-dir", type=Path, default=Path(".stacks"), help="where stacks lie (default: .stacks)")
    _add_register(commands.add_parser("register", help="use an interpreter that is there, and lay over what it lacks"))
    return parser


def _add_register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")
    parser.add_argument("--python", type=Path, required=True, help="the interpreter; it is never changed")
    names = {
        "accept": "keep what differs: names, name==version, :extra: for all that the lock does not have",
        "overlay": "install the lock's version over what differs: names, or :all:",
        "leave-out": "do not install these, though they are missing",
    }
    for option, help_text in names.items():
        parser.add_argument(f"--{option}", action="append", default=[], metavar="NAMES", help=help_text)
    parser.add_argument("--find-links", type=Path, metavar="DIR", help="take what is missing from this folder alone")
    parser.add_argument("--stacks-dir", type=Path, default=Path(".stacks"), help="where stacks lie (default: .stacks)")
    _add_wheels(parser)


def _add_wheels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wheel",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="install this wheel of a package in source_builds instead of compiling it; with --sha256",
    )
    parser.add_argument(
        "--sha256", action="append", default=[], metavar="HEX", help="of the --wheel, as its builder noted it"
    )


def _stop(number: int, frame: FrameType | None) -> None:
    # As an exception it passes through the code that removes a half-built environment.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
