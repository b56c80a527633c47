"""Checks an environment against its lock and shows that it works; shared by every stack's verify.py.

Runs in the stack's own Python: the standard library and, inside the probes, the stack's packages.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _child import die_with_parent, run_in_child
from _files import edited_files
from _needs import lacks, nvcc_release
from _runtime import run_time_troubles

CUDA = object()
"""An expected value: CUDA's release as stack.yaml declares it, such as "12.4"."""


@dataclass(frozen=True)
class Probe:
    """A small piece of real work: `run` imports what it needs and returns what is compared with `expected`.

    `expected` may be CUDA: then it is written in one place only.
    """

    name: str
    package: str
    """The pin that answers for it: a failure names this package's line of the lock."""
    expected: Any
    run: Callable[[], Any]
    gpu: bool = False
    """It needs a GPU: left out unless verify.py is run with --gpu, on a compute node."""
    backend: str | None = None
    """`conda` or `uv`: only where the stack was built that way (`pip`: an environment as found)."""
    limit_s: float = 900.0
    """With `gpu`: it runs in a child process, which is killed after so many seconds: a hang, not a busy node."""
    off_by: tuple[str, ...] = ()
    """Variables that turn off, with the value 1, what it tries: then it is not run, and passes."""


def main(probes: list[Probe], arguments: list[str] | None = None) -> int:
    """Writes the verdict to --out; 0 when every check passed, 1 otherwise.

    The lock is that beside the program, and the stack's verify.json says the rest: a process of the stack needs
    `verify.py --gpu --out <file>` only.
    """
    given = _parser().parse_args(arguments)
    if given.probe:
        return _one_probe(probes, given.probe, given.out)
    folder = Path(sys.modules["__main__"].__file__ or ".").resolve().parent
    python = ".".join(platform.python_version_tuple()[:2])
    facts, since = _facts(given, {"stack": folder.name, "python_release": python})
    lock, cuda, run = given.lock or folder / "requirements.lock", facts["cuda"], facts["run"]
    packages, pins = installed(), pinned(lock)
    checks = [check("python", facts["python_release"], python, "stack.yaml")]
    checks += _package_checks(packages, pins, lock.name, facts["conda"])
    if "state" not in facts["origin"]:  # an environment as found may have been edited before
        checks += _file_checks(pins, lock.name, since)
    checks = [_unless_accepted(one, facts["origin"].get("accepted", {})) for one in checks]
    checks += [check(name, "yes", why or "yes", "stack.yaml") for name, why in run_time_troubles(run).items()]
    if given.gpu or cuda is None:  # a login node need not have what compute nodes need
        layer = facts["backend"] == "uv" and (folder / "conda-lock.yml").is_file()
        checks += _need_checks(run.get("needs", []), cuda, layer)
    chosen = [one for one in probes if one.backend in {None, facts["backend"]} and (given.gpu or not one.gpu)]
    checks += _probe_checks(chosen, pins, lock.name, cuda)
    verdict = {
        **facts,
        "ok": all(each["ok"] for each in checks),
        "python": platform.python_version(),
        "python_release": python,
        "platform": sysconfig.get_platform(),
        "state": facts["origin"].get("state", "built"),
        "nvcc": nvcc_release(),
        "gpu": given.gpu,
        "checks": checks,
        "packages": packages,
    }
    _write(given.out, verdict)
    return 0 if verdict["ok"] else 1


def _facts(given: argparse.Namespace, defaults: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """What the builder says of the environment, or the stack's verify.json, and then that file's time."""
    # Not resolved: what was recorded as found is reached through a link, beside which the verdict lies.
    path = given.built or Path(sys.prefix).parent / "verify.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    defaults |= {"lock_id": None, "verify_id": None, "backend": "uv", "cuda": given.cuda}
    defaults |= {"conda": [], "run": {}, "origin": {}}
    facts = {key: known.get(key, default) for key, default in defaults.items()}
    if given.origin:
        facts["origin"] = json.loads(given.origin.read_text(encoding="utf-8"))
    return facts, path.stat().st_mtime if "checks" in known else 0.0


def _package_checks(
    packages: dict[str, str], pins: dict[str, tuple[str, int]], lock: str, conda: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    records = conda_records()
    checks = [
        check(package, version, packages.get(package, "not installed"), f"{lock}:{line}")
        for package, (version, line) in pins.items()
    ]
    for package in sorted(set(packages) - set(pins) - conda_distributions(records)):
        checks.append(check(package, "not installed", packages[package], f"{lock}: no line"))
    return checks + _conda_checks(conda, records)


def _file_checks(pins: dict[str, tuple[str, int]], lock: str, since: float) -> list[dict[str, Any]]:
    """Whether all files are as they were installed; those that nobody has touched `since` then are not read again."""
    found = edited_files(Path(sysconfig.get_path("purelib")), since)
    checks = [
        check(f"files of {package}", "as installed", f"changed: {', '.join(files[:5])}", _line_of(package, pins, lock))
        for package, files in found.items()
    ]
    return checks or [check("files of all packages", "as installed", "as installed", lock)]


def _line_of(package: str, pins: dict[str, tuple[str, int]], lock: str) -> str:
    return f"{lock}:{pins[package][1]}" if package in pins else f"{lock}: no line"


def _need_checks(needs: list[str], cuda: str | None, layer: bool) -> list[dict[str, Any]]:
    found = {lack.need: lack.line for lack in lacks(needs, cuda, layer=layer)}
    return [check(f"what runs here needs {need}", "there", found.get(need, "there"), "stack.yaml") for need in needs]


def _probe_checks(
    probes: list[Probe], pins: dict[str, tuple[str, int]], lock: str, cuda: str | None
) -> list[dict[str, Any]]:
    checks, hung = [], None
    for probe in probes:
        # The last line before a crash of the interpreter itself (SIGILL on an old CPU) names what ran.
        print(f"checking {probe.name}", file=sys.stderr, flush=True)
        source = _line_of(probe.package, pins, lock)
        wanted = cuda if probe.expected is CUDA else probe.expected
        if off := next((name for name in probe.off_by if os.environ.get(name) == "1"), None):
            checks.append({**check(probe.name, wanted, f"off by {off}", source), "ok": True})
            continue
        if not probe.gpu:
            got = _outcome(probe)
        elif hung is not None:
            # A GPU that does not answer would take the limit of every probe.
            got = f"not run, since the check {hung!r} hung"
        else:
            got, in_time = run_in_child(probe.name, probe.limit_s)
            hung = None if in_time else probe.name
        checks.append(check(probe.name, wanted, got, source))
    return checks


def _one_probe(probes: list[Probe], name: str, out: Path) -> int:
    """What the child does: runs that probe and writes its outcome."""
    die_with_parent()
    probe = next(probe for probe in probes if probe.name == name)
    _write(out, {"got": _outcome(probe)})
    return 0


def _write(out: Path, content: dict[str, Any]) -> None:
    temporary = out.with_name(out.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    temporary.replace(out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Checks a built stack against its lock.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu", action="store_true", help="on a compute node: run what needs a GPU, too")
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--built", type=Path, help="what the builder knows, as JSON (default: the stack's verify.json)")
    parser.add_argument("--origin", type=Path, help="JSON: what an environment as found is")
    parser.add_argument("--cuda", help="CUDA's release, as in 12.4, where there is no verify.json")
    parser.add_argument("--probe", help="run this probe alone and write its outcome: what a check with a limit does")
    return parser


def pinned(lock: Path) -> dict[str, tuple[str, int]]:
    """Version and line (from 1) of every pin of a lock, by normalized name."""
    found = {}
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), start=1):
        if pin := re.match(r"([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", line):
            found[_normalized(pin[1])] = (pin[2], number)
    return found


def installed() -> dict[str, str]:
    """Version of every installed package that an import finds, by normalized name, sorted."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if getattr(getattr(distribution, "_path", None), "name", "").startswith("~"):
            continue  # what an interrupted pip left behind, which it ignores itself
        # A package whose metadata was damaged has no name.
        name = distribution.metadata["Name"] or f"without a name: {getattr(distribution, '_path', '?')}"
        # In the order of sys.path: in a registered stack the first one hides the other.
        found.setdefault(_normalized(name), distribution.version or "no version")
    return dict(sorted(found.items()))


def conda_records() -> list[dict[str, Any]]:
    """What conda says it installed in this environment: the contents of conda-meta, by name; empty without conda."""
    folder = Path(sys.prefix) / "conda-meta"
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(records, key=lambda record: str(record["name"]))


def conda_distributions(records: list[dict[str, Any]]) -> set[str]:
    """Normalized names of the Python packages that conda installed: no pip lock lists them."""
    folders = {
        Path(sys.prefix) / path.rpartition("/")[0]
        for record in records
        for path in record.get("files", [])
        if path.endswith((".dist-info/METADATA", ".egg-info/PKG-INFO"))
    }
    return {
        _normalized(distribution.metadata["Name"])
        for distribution in importlib.metadata.distributions()
        if getattr(distribution, "_path", None) in folders and distribution.metadata["Name"]
    }


def _conda_checks(locked: list[dict[str, Any]], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {record["name"]: f"{record['version']} {record['build']}" for record in records}
    wanted = {package["name"]: f"{package['version']} {package['build']}" for package in locked}
    lines = {package["name"]: f"conda-lock.yml:{package['line']}" for package in locked}
    return [
        check(
            f"conda's {name}",
            wanted.get(name, "not installed"),
            found.get(name, "not installed"),
            lines.get(name, "conda-lock.yml: no line"),
        )
        for name in sorted({*wanted, *found})
    ]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def check(name: str, expected: Any, got: Any, source: str) -> dict[str, Any]:
    """One line of the verdict; `source` is the line of the lock or the file that answers for it."""
    return {"name": name, "expected": expected, "got": got, "ok": expected == got, "source": source}


def _unless_accepted(one: dict[str, Any], accepted: dict[str, str]) -> dict[str, Any]:
    """The check, passed as well where the user accepted exactly what was found, by name."""
    if one["ok"] or accepted.get(one["name"]) != one["got"]:
        return one
    return {**one, "ok": True, "accepted": True}


def _outcome(probe: Probe) -> Any:
    try:
        return probe.run()
    except BaseException as error:  # a library may raise SystemExit, or a Rust panic that is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return brief(f"{type(error).__name__}: {error}")


def brief(text: str) -> str:
    """The first line of an error and, of a compiler's output below it, the line that names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [text]
    named = [line for line in lines[1:] if re.search(r"\berror\b|fatal|cannot find", line, re.IGNORECASE)]
    return " ... ".join(line[:300] for line in [lines[0], *(named[:1] or lines[1:][-1:])])
