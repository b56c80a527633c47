"""Reads a conda-lock.yml, and checks its packages against the environment.yml beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from common.errors import UserError
from workflow.stacks.definition import Stack

PLATFORM = "linux-64"
_SPEC = re.compile(
    r"^(?:[\w.-]+::)?(?P<name>[A-Za-z0-9_][\w.-]*)\s*(?P<version>[=!<>~*\d][^ ]*(?:\s*[,|]\s*[^ ]+)*)?"
    r"(?:\s+(?P<build>\S+))?$"
)
_CLAUSE = re.compile(r"^(?P<op>==|!=|>=|<=|~=|=|>|<)?\s*(?P<version>[\w.*+!-]+)$")
_HEX = {"md5": re.compile(r"[0-9a-f]{32}"), "sha256": re.compile(r"[0-9a-f]{64}")}


@dataclass(frozen=True)
class CondaPackage:
    """One package of a conda lock, with its hashes and its line (from 1)."""

    name: str
    version: str
    build: str
    url: str
    md5: str | None
    sha256: str
    line: int
    needs: tuple[str, ...] = ()

    @property
    def filename(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def subdir(self) -> str:
        """The channel's folder, `linux-64` or `noarch`."""
        return PurePosixPath(self.url).parent.name


def parse_conda_lock(path: Path) -> list[CondaPackage]:
    """All packages of a conda-lock.yml (format 1), in order; UserError names a wrong line."""
    make = f"make locks STACK={path.parent.name}"
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        given: Any = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    valid = isinstance(given, dict) and given.get("version") == 1 and isinstance(given.get("package"), list)
    if node is None or not valid:
        raise UserError(f"{path} is not a conda-lock file of format 1; make it with `{make}`")
    (entries,) = [value for key, value in node.value if key.value == "package"]
    packages = []
    for item, entry in zip(given["package"], entries.value, strict=True):
        line = entry.start_mark.line + 1
        try:
            packages.append(_package(item, line))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = str(error) if isinstance(error, ValueError) else f"{error} is missing or not understood"
            raise UserError(f"{path}:{line}: {what}; make it again with `{make}`") from None
    return packages


def check_conda_lock(stack: Stack, lock: Path | None = None) -> list[CondaPackage]:
    """Checks the stack's conda lock against its environment.yml and returns its packages; empty without a lock.

    `lock` replaces conda-lock.yml, to check a new lock before it is used. Every dependency of environment.yml must be
    locked in a fitting version, every package's own dependencies by name, and Python in the stack's release. UserError
    names the problem and the command that makes the lock again.
    """
    path = lock or stack.conda_lock
    make = f"make locks STACK={stack.name}"
    if path is None:
        return []
    packages = parse_conda_lock(path)
    locked: dict[str, CondaPackage] = {}
    for package in packages:
        if package.name in locked:
            raise UserError(f"{path}:{package.line} lists {package.name} twice; make it again with `{make}`")
        locked[package.name] = package
    for package in packages:
        for need in package.needs:
            if not need.startswith("__") and need not in locked:
                raise UserError(f"{path}:{package.line}: {package.name} needs the missing {need}; run `{make}`")
    for name, version, build, source in _requirements(stack.environment):
        found = locked.get(name)
        if found is None:
            raise UserError(f"{source} wants {name}, which {path} does not have; run `{make}`")
        if not fits(version, found.version) or (build not in {None, "*"} and build != found.build):
            wanted = f"{name} {version}" + (f" {build}" if build else "")
            raise UserError(f"{source} wants {wanted}, but {path}:{found.line} has {found.version}; run `{make}`")
    python = locked.get("python")
    if python is None or not fits(f"{stack.python}.*", python.version):
        got = "none" if python is None else f"{python.version} (line {python.line})"
        raise UserError(f"{path} must have Python {stack.python}, as in stack.yaml (got {got}); run `{make}`")
    return packages


def fits(requirement: str, version: str) -> bool:
    """True if a conda version meets a requirement such as `3.11.*`, `=12.4`, `>=2.17,<3` or `1.0|2.0`."""
    parts = requirement.split("|")
    return any(all(_clause_fits(clause.strip(), version) for clause in part.split(",")) for part in parts)


def _clause_fits(clause: str, version: str) -> bool:
    if clause in {"", "*"}:
        return True
    parsed = _CLAUSE.match(clause)
    if parsed is None:
        raise UserError(f"the version {clause!r} of an environment.yml is not understood; write 1.2.* or >=1.2")
    operator, wanted = parsed["op"], parsed["version"]
    stem = wanted.rstrip("*").rstrip(".")
    if operator in {None, "=", "==", "!="}:  # compares text: conda versions need not be Python versions
        starred = wanted.endswith("*") or operator == "="
        return (version == stem or (starred and version.startswith(stem + "."))) != (operator == "!=")
    try:
        return SpecifierSet(f"{operator}{stem}").contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        raise UserError(
            f"environment.yml: cannot compare {version} with {wanted}; write the version as 1.2.*"
        ) from None


def _package(item: dict[str, Any], line: int) -> CondaPackage:
    name, url, hashes = str(item["name"]), str(item["url"]), dict(item["hash"])
    if item["manager"] != "conda":
        raise ValueError(f"{name} is a {item['manager']} package; move it to requirements.lock, with its hashes")
    if item["platform"] != PLATFORM:
        raise ValueError(f"{name} is for {item['platform']}; stacks are for {PLATFORM}")
    for kind, form in _HEX.items():
        if kind in hashes and not form.fullmatch(str(hashes[kind])):
            raise ValueError(f"{name} has no {kind} of the right form ({hashes[kind]!r})")
    if "sha256" not in hashes:
        raise ValueError(f"{name} has no sha256")
    version, filename = str(item["version"]), PurePosixPath(url).name
    stem = f"{name}-{version}-"
    suffix = next((end for end in (".conda", ".tar.bz2") if filename.endswith(end)), None)
    if suffix is None or not filename.startswith(stem):
        raise ValueError(f"the file of {name} {version} is called {filename}")
    # The file name contains the build; older locks have no key `build`.
    build = filename.removeprefix(stem).removesuffix(suffix)
    needs = tuple(str(need) for need in item.get("dependencies") or {})
    return CondaPackage(name, version, build, url, hashes.get("md5"), hashes["sha256"], line, needs)


def _requirements(path: Path) -> list[tuple[str, str, str | None, str]]:
    """Name, version, build and source of every conda dependency in an environment.yml."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: conda-lock.yml beside it is made from it; restore it") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(given, dict) or not isinstance(given.get("dependencies"), list):
        raise UserError(f"{path} must have `channels:` and a list of `dependencies:`")
    requirements = []
    for number, text in enumerate(given["dependencies"], start=1):
        source = f"{path}, dependency {number},"
        if not isinstance(text, str):
            raise UserError(f"{source} is not a conda package; move pip packages to requirements.in")
        parsed = _SPEC.match(text.split(" #")[0].strip())
        if parsed is None:
            raise UserError(f"{source} is not understood: {text!r}; write `name 1.2.*`")
        requirements.append(
            (parsed["name"].lower(), (parsed["version"] or "*").replace(" ", ""), parsed["build"], source)
        )
    return requirements
