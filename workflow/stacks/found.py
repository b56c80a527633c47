"""Records an environment that works as a stack, as found: it is not built from a lock, and nothing is written into it.

    record(name: str, python: Path, *, trainer: str | None = None, engine: str | None = None) -> Stack

writes what the environment has to `.stacks/<name>/<lock_id>/` in the working directory, and returns the stack, which
`load_stack(name)` then finds. It takes about a second and runs no check: `make_ready` does, which `build` calls.
`doubts(stack)` lists what runs in it may lack. UserError states what the environment or the name lacks.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

from common.errors import UserError
from common.files import write_text
from common.messages import join_first, unknown_name
from engines import Engine, engine_named, engines
from trainers.protocol import Trainer
from trainers.registry import brings_work, trainer_named, trainers
from trainers.replay import RELEASE
from workflow.stacks.conda import check_conda_lock
from workflow.stacks.definition import CURRENT, ENVS, STACKS, Stack, load_stack, lock_id, read_stack, stack_names
from workflow.stacks.disk import builder_lock, explaining_disk
from workflow.stacks.verification import FOUND, BuiltEnvironment, is_ready, verify

OLDEST_PYTHON = "3.10"
"""The oldest release that the driver's code runs with."""
_PROGRAM = ENVS / "found" / "recorded.py"
_LIMIT_S = 300
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_PIN = re.compile(r"[A-Za-z0-9][\w.-]*==[^\s;\\]+")
_CACHES = {
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "VLLM_CACHE_ROOT": "vllm",
    "SGLANG_JIT_CACHE_DIR": "sglang",
}
"""As in the shipped stacks: two runs at once must not share a cache of compiled code."""
_WISHES = {
    "wandb": "the tracker; without it there is no wandb run, and metrics.jsonl has every step all the same",
    "math-verify": "the rewards that compare answers (accuracy, cosine, phi4)",
}
"""Packages that not every training needs -> what needs them."""
_PYTHON = """\
#!/bin/sh
# Runs the interpreter of an environment that was recorded as found, which writes no bytecode there: -I would ignore the
# variable PYTHONPYCACHEPREFIX, which is for its children.
python={python}
if [ ! -x "$python" ]; then
  echo "error: stack {name}: $python is not on $(uname -n); restore that environment, or record another one" >&2
  exit 2
fi
exec "$python" -X pycache_prefix={cache} "$@"
"""
_SHOWN = 4


def record(name: str, python: Path, *, trainer: str | None = None, engine: str | None = None) -> Stack:
    """Records the environment of that interpreter, or of that folder; recording it again replaces the description.

    Trainer and engine are recognised by the installed packages; `trainer` and `engine` decide between several.
    """
    _check_name(name)
    found = _read(python)
    chosen = _trainer(found, trainer)
    declared = {
        "description": f"{FOUND}: {found['prefix']}",
        "trainer": chosen.name,
        "trainer_version": found["packages"][canonicalize_name(chosen.distribution)] if chosen.trains else RELEASE,
        "engine": _engine(found, chosen, engine).name,
        "python": found["release"],
        **_accelerator(found),
        "disk_gib": 0,
        "found_python": found["python"],
        "found_prefix": found["prefix"],
        "run_paths": {"PATH": [found["programs"]]},
        "run_caches": _CACHES,
    }
    own = STACKS / name
    own.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=own) as temporary:
        folder = Path(temporary)
        write_text(folder / "stack.yaml", yaml.safe_dump(declared, sort_keys=False, allow_unicode=True))
        write_text(folder / "requirements.lock", "".join(f"{line}\n" for line in _lock_lines(found)))
        if found["conda"]:
            write_text(folder / "conda-explicit.txt", "\n".join(["@EXPLICIT", *found["conda"], ""]))
        final = own / lock_id(read_stack(name, folder / "stack.yaml"))
        final.mkdir(exist_ok=True)
        for file in sorted(folder.iterdir()):
            file.replace(final / file.name)
        (folder / CURRENT).symlink_to(final.name)
        (folder / CURRENT).replace(own / CURRENT)
    return load_stack(name)


def doubts(stack: Stack) -> list[str]:
    """What runs in a recorded environment may lack: packages with what needs them, and unknown commits."""
    lines = _recorded_lines(stack)
    found = [f"{name} is not installed; needed by {user}" for name, user in _WISHES.items() if name not in lines]
    unknown = [name for name, rest in lines.items() if rest.endswith("of an unknown commit")]
    return found + [f"the commit of {name} is unknown, since its folder is not in git" for name in unknown]


def make_ready(stack: Stack, expected: str | None = None) -> Path:
    """Verifies a recorded environment unless it is ready; returns its folder. UserError reports what failed.

    `expected` is the plan's lock_id.
    """
    recorded, final = lock_id(stack), stack.folder
    if expected not in {None, recorded}:
        raise UserError(
            f"stack {stack.name} was recorded again after the plan was made: {expected} was planned, it is now "
            f"{recorded}; run again to make a new plan"
        )
    require_unchanged([stack.name])
    if is_ready(stack, final):
        return final
    with explaining_disk(stack.name, final), builder_lock(final.parent, stack.name) as fds:
        if not is_ready(stack, final):
            python = final / "env" / "bin" / "python"
            parts = {"python": str(stack.found_python), "cache": str(final / "pycache"), "name": stack.name}
            write_text(python, _PYTHON.format_map({name: shlex.quote(part) for name, part in parts.items()}))
            python.chmod(0o755)
            stack.log(f"verifying {stack.found_python}")
            packages = check_conda_lock(stack)
            verify(BuiltEnvironment(stack, final / "env", recorded, packages, _origin(stack), fds), final)
    return final


def require_unchanged(names: Iterable[str]) -> None:
    """UserError if the environment of one of these stacks is not what was recorded; other stacks are skipped."""
    for stack in map(load_stack, dict.fromkeys(names)):
        if stack.found_python is None:
            continue
        again = f"`python -m workflow.stacks found {stack.name} --python {shlex.quote(str(stack.found_python))}"
        again += f" --trainer {stack.trainer} --engine {stack.engine}`"
        if not os.access(stack.found_python, os.X_OK):
            raise UserError(
                f"the environment of stack {stack.name} is gone: {stack.found_python}; restore it, or record another "
                f"one under that name: {again}"
            )
        if changes := _changes(stack, _read(stack.found_python)):
            raise UserError(
                f"the environment has changed since it was recorded: {stack.name} has {join_first(changes, _SHOWN)}; "
                f"record it again (its runs are then other runs): {again}"
            )


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"a stack's name must be at most 60 letters, digits, '.', '_' and '-', and begin with a letter or digit "
            f"(got {name!r})"
        )
    if name in stack_names():
        raise UserError(f"{name} is a stack of {ENVS}; give the environment another name")


def _read(python: Path) -> dict[str, Any]:
    """What the environment of that interpreter, or of that folder, has (envs/found/recorded.py)."""
    path = python.expanduser()
    asked = [one.distribution for one in trainers()] + [package for one in engines() for package in one.packages]
    done = None
    try:
        path = (path / "bin" / "python" if path.is_dir() else path).absolute()
        command = [str(path), "-I", "-B", str(_PROGRAM), *map(canonicalize_name, asked)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        last = done.stderr.strip()[-300:] if done else str(error)
        raise UserError(
            f"--python: {path} does not say what it has ({last}); give the path that `python3 -c 'import sys; "
            "print(sys.executable)'` prints there"
        ) from None
    if found["implementation"] != "cpython" or Version(found["release"]) < Version(OLDEST_PYTHON):
        raise UserError(
            f"--python: {path} is {found['implementation']} {found['release']}; the driver and the stacks' wheels need "
            f"CPython {OLDEST_PYTHON} or later"
        )
    if found["unreadable"]:
        raise UserError(f"--python: the packages in {found['unreadable'][0]} cannot be read; ask its owner for access")
    return found


def _trainer(found: Mapping[str, Any], given: str | None) -> Trainer:
    driven = {one.name: one for one in trainers() if one.driver is not None and not brings_work(one.name)}
    # A replay has no package of its own.
    packages = {name: [one.distribution] if one.trains else [] for name, one in driven.items()}
    if chosen := _chosen(found, "trainer", packages, given):
        return driven[chosen]
    alone = next(name for name in packages if not packages[name])
    unseen = f"packages in {found['of_user']} (pip install --user) and" if found["of_user"] else "packages in"
    raise UserError(
        f"{found['prefix']} has no trainer ({', '.join(filter(packages.get, packages))}; {unseen} PYTHONPATH are not "
        f"seen); install one there, or run an engine alone: --trainer {alone}"
    )


def _engine(found: Mapping[str, Any], trainer: Trainer, given: str | None) -> Engine:
    packages = {one: list(engine_named(one).packages) for one in trainer.engines}
    # One that every trainer brings counts where there is no other.
    beside = {name: packages[name] for name in packages if not engine_named(name).in_trainer}
    chosen = None if given else _chosen(found, "engine", beside, None)
    if chosen := chosen or _chosen(found, "engine", packages, given, f" of {trainer.name}"):
        return engine_named(chosen)
    raise UserError(f"{found['prefix']} has no engine of {trainer.name} ({', '.join(packages)}); install one there")


def _chosen(
    found: Mapping[str, Any], what: str, packages: Mapping[str, Sequence[str]], given: str | None, of: str = ""
) -> str | None:
    """The given one, or the one whose package is there and is required by no other; None if there is none.

    UserError for one that is unknown or is not there, and for several.
    """
    there = {name: one for name, options in packages.items() for one in options if one in found["packages"]}
    if given is not None:
        if given not in packages:
            raise UserError(f"--{what}: {unknown_name(what + of, given, packages)}")
        if packages[given] and given not in there:
            raise UserError(f"--{what}: {found['prefix']} has no {' or '.join(packages[given])}")
        return given
    required = {need for package in there.values() for need in found["requires"].get(package, [])}
    left = {name: found["packages"][package] for name, package in there.items() if package not in required}
    if len(left) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in left.items())
        raise UserError(f"{found['prefix']} has several {what}s: {listed}; name one with --{what}")
    return next(iter(left), None)


def _accelerator(found: Mapping[str, Any]) -> dict[str, str]:
    torch = found["torch"]
    if torch is None or torch["hip"]:
        what = "has no torch" if torch is None else f"has torch for ROCm {torch['hip']}"
        raise UserError(f"{found['prefix']} {what}; wanted torch built for CUDA or for a CPU")
    return {"accelerator": "cuda", "cuda": str(torch["cuda"])} if torch["cuda"] else {"accelerator": "cpu"}


def _lock_lines(found: Mapping[str, Any]) -> list[str]:
    """As `pip freeze`: each package and version, and behind it where it comes from if not from an index."""
    sources = found["sources"]
    return [
        f"{name}=={version}" + (f"  # {sources[name]}" if name in sources else "")
        for name, version in found["packages"].items()
    ]


def _recorded_lines(stack: Stack) -> dict[str, str]:
    """By package: the rest of its line in the record."""
    lines = stack.lock.read_text(encoding="utf-8").splitlines()
    return {name: rest for name, _, rest in (line.partition("==") for line in lines)}


def _changes(stack: Stack, found: Mapping[str, Any]) -> list[str]:
    then = {"Python": stack.python, "torch's CUDA": str(stack.cuda), **_recorded_lines(stack)}
    now = {
        "Python": str(found["release"]),
        "torch's CUDA": str((found["torch"] or {}).get("cuda")),
        **{name: rest for name, _, rest in (line.partition("==") for line in _lock_lines(found))},
    }
    conda = stack.found_conda.read_text(encoding="utf-8").splitlines()[1:] if stack.found_conda.is_file() else []
    for packages, lines in ((then, conda), (now, found["conda"])):
        packages |= {f"conda's {line.rpartition('/')[2].rsplit('-', 2)[0]}": line.partition("#")[0] for line in lines}
    first = {"Python", "torch", trainer_named(stack.trainer).distribution, *engine_named(stack.engine).packages}
    return [
        f"{name} {now[name]} now, was {then[name]}"
        if name in now and name in then
        else f"{name} {now[name]}, which was not there"
        if name in now
        else f"no {name}, was {then[name]}"
        for name in sorted({*then, *now}, key=lambda name: (name not in first, name))
        if then.get(name) != now.get(name)
    ]


def _origin(stack: Stack) -> dict[str, Any]:
    lines = _recorded_lines(stack)
    sources = {name: rest.partition("  # ")[2] for name, rest in lines.items() if "  # " in rest}
    versions = {name: rest.partition("  # ")[0] for name, rest in lines.items()}
    # Packages whose metadata is damaged have no usable line.
    accepted = {name: version for name, version in versions.items() if not _PIN.fullmatch(f"{name}=={version}")}
    return {
        "state": FOUND,
        "python": str(stack.found_python),
        "trainer": stack.trainer,
        "engine": stack.engine,
        **({"sources": sources} if sources else {}),
        **({"accepted": accepted} if accepted else {}),
    }
