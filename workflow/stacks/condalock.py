"""Reads a conda-lock.yml, and checks that its packages fulfil the environment.yml beside it."""

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
    """One package of a conda lock: what it is, where its channel has it, its hashes, and its line (from 1)."""

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
        """The channel's folder that holds it, `linux-64` or `noarch`."""
        return PurePosixPath(self.url).parent.name


def parse_conda_lock(path: Path) -> list[CondaPackage]:
    """All packages of a conda-lock.yml (format 1) for this platform, in its order; UserError names what is wrong."""
    make = f"make locks STACK={path.parent.name}"
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        given: Any = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    if (
        node is None
        or not isinstance(given, dict)
        or given.get("version") != 1
        or not isinstance(given.get("package"), list)
    ):
        raise UserError(f"{path} is not a conda-lock file of format 1; make it with `{make}`")
    (listed,) = [value for key, value in node.value if key.value == "package"]
    packages = []
    for item, place in zip(given["package"], listed.value, strict=True):
        line = place.start_mark.line + 1
        try:
            packages.append(_package(item, line))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = str(error) if isinstance(error, ValueError) else f"{error} is missing or not understood"
            raise UserError(f"{path}:{line}: {what}; make it anew with `{make}`") from None
    return packages


def check_conda_lock(stack: Stack, lock: Path | None = None) -> list[CondaPackage]:
    """The packages of the stack's conda lock, once they fulfil its environment.yml; empty for a stack without one.

    `lock` stands in for conda-lock.yml, as a new one does before it replaces the old.

    What can be told without a channel: every wish is there in a version that fits, every package's own needs are
    there by name, and Python is the stack's. UserError names the wish and the command that makes the lock anew.
    """
    path = lock or stack.conda_lock
    make = f"make locks STACK={stack.name}"
    if path is None:
        return []
    packages = parse_conda_lock(path)
    locked: dict[str, CondaPackage] = {}
    for package in packages:
        if package.name in locked:
            raise UserError(f"{path}:{package.line} names {package.name} a second time; make it anew with `{make}`")
        locked[package.name] = package
    for package in packages:
        for need in package.needs:
            if not need.startswith("__") and need not in locked:
                raise UserError(f"{path}:{package.line}: {package.name} needs {need}, which is not in it; run `{make}`")
    for name, version, build, source in _wishes(stack.environment):
        found = locked.get(name)
        if found is None:
            raise UserError(f"{source} wants {name}, which {path} does not have; run `{make}`")
        if not fits(version, found.version) or (build not in {None, "*"} and build != found.build):
            wish = f"{name} {version}" + (f" {build}" if build else "")
            raise UserError(f"{source} wants {wish}, but {path}:{found.line} has {found.version}; run `{make}`")
    python = locked.get("python")
    if python is None or not fits(f"{stack.python}.*", python.version):
        got = "none" if python is None else f"{python.version} (line {python.line})"
        raise UserError(f"{path} has to hold Python {stack.python}, as stack.yaml says; it has {got}")
    return packages


def fits(wish: str, version: str) -> bool:
    """Does a conda version fit a version wish such as `3.11.*`, `=12.4`, `>=2.17,<3` or `1.0|2.0`?"""
    return any(all(_clause_fits(clause.strip(), version) for clause in part.split(",")) for part in wish.split("|"))


def _clause_fits(clause: str, version: str) -> bool:
    if clause in {"", "*"}:
        return True
    parsed = _CLAUSE.match(clause)
    if parsed is None:
        raise UserError(f"the version {clause!r} of an environment.yml is not understood; write it as 1.2.* or >=1.2")
    operator, wanted = parsed["op"], parsed["version"]
    stem = wanted.rstrip("*").rstrip(".")
    if operator in {None, "=", "==", "!="}:  # as texts: conda's versions need not be Python's
        starred = wanted.endswith("*") or operator == "="
        return (version == stem or (starred and version.startswith(stem + "."))) != (operator == "!=")
    try:
        return SpecifierSet(f"{operator}{stem}").contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        raise UserError(
            f"{version} and {wanted} of an environment.yml cannot be compared; write the wish as 1.2.*"
        ) from None


def _package(item: dict[str, Any], line: int) -> CondaPackage:
    name, url, hashes = str(item["name"]), str(item["url"]), dict(item["hash"])
    if item["manager"] != "conda":
        raise ValueError(f"{name} is a {item['manager']} package; those belong in requirements.lock, with their hashes")
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
    # The file's name carries the build; the key `build` is a newer addition to the format.
    build = filename.removeprefix(stem).removesuffix(suffix)
    needs = tuple(str(need) for need in item.get("dependencies") or {})
    return CondaPackage(name, version, build, url, hashes.get("md5"), hashes["sha256"], line, needs)


def _wishes(path: Path) -> list[tuple[str, str, str | None, str]]:
    """Name, version, build and source of everything that an environment.yml asks of conda."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: it says what conda-lock.yml beside it was made from") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(given, dict) or not isinstance(given.get("dependencies"), list):
        raise UserError(f"{path} must hold `channels:` and `dependencies:`")
    wishes = []
    for number, text in enumerate(given["dependencies"], start=1):
        source = f"{path}, dependency {number},"
        if not isinstance(text, str):
            raise UserError(f"{source} is not a conda package; pip's packages belong in requirements.in")
        parsed = _SPEC.match(text.split(" #")[0].strip())
        if parsed is None:
            raise UserError(f"{source} is not understood: {text!r}; write `name 1.2.*`")
        wishes.append((parsed["name"].lower(), (parsed["version"] or "*").replace(" ", ""), parsed["build"], source))
    return wishes
