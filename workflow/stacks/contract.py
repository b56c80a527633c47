"""Compares the hooks of our drivers with the source of a release, which is read and never imported or installed."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from common.errors import UserError
from common.files import ROOT
from common.messages import unknown_name
from common.redaction import without_secrets
from engines import engines
from node.hooks import Hook
from trainers.registry import trainers

THERE, MOVED, CHANGED, GONE, NOT_THERE = "there", "moved", "signature changed", "gone", "as expected not there"


@dataclass(frozen=True)
class FoundHook:
    """What a release has of one hook."""

    table: str
    """The file with the hook's row."""
    hook: Hook
    state: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f"  {self.detail}" if self.detail else ""
        return f"{self.state}: {self.hook.module}:{self.hook.name}{detail}\n    relied on: {self.hook.relied_on}"


@dataclass(frozen=True)
class Contract:
    """All hooks of one package in one release."""

    package: str
    version: str
    found: tuple[FoundHook, ...]
    doubt: str = ""
    """Why this release may not be what is wanted."""

    @property
    def to_read(self) -> tuple[FoundHook, ...]:
        """The hooks that a maintainer must read again."""
        return tuple(one for one in self.found if one.state not in (THERE, NOT_THERE))

    def summary(self) -> str:
        """One line."""
        expected = [one for one in self.found if one.state != NOT_THERE]
        there = sum(one.state == THERE for one in expected)
        doubt = f" ({self.doubt})" if self.doubt else ""
        return f"{self.package} {self.version}: {there} of {len(expected)} hooks are there with their signature{doubt}"


def import_names() -> dict[str, str]:
    """Package -> the name under which it is imported, of all packages that have hooks."""
    found = {trainer.distribution: trainer.name for trainer in trainers()}
    found |= {package: engine.name for engine in engines() for package in engine.packages}
    hooked = {hook.module.partition(".")[0] for _, hook in rows()}
    return {canonicalize_name(package): name for package, name in found.items() if name in hooked}


def rows() -> Iterator[tuple[str, Hook]]:
    """Every hook, with the file of its row."""
    for file in sorted([*ROOT.glob("trainers/*/hooks.py"), *ROOT.glob("engines/*/hooks.py")]):
        place = file.relative_to(ROOT)
        module = importlib.import_module(".".join(place.with_suffix("").parts))
        yield from ((str(place), hook) for hook in vars(module).values() if isinstance(hook, Hook))


def contract(given: str) -> Contract:
    """Compares a release: `trl==1.16.0`, a wheel, or a folder that has the package or is it.

    `UserError` for a package without hooks, and for a release that cannot be downloaded.
    """
    path = Path(given)
    if path.is_dir():
        return _of_folder(path)
    with tempfile.TemporaryDirectory(prefix="rolloutbench-contract-") as folder:
        wheel, doubt = (path, "") if path.suffix == ".whl" else downloaded(given, Path(folder))
        return replace(_of_folder(unpacked(wheel, Path(folder) / "unpacked")), doubt=doubt)


def compare(hooks: Iterable[tuple[str, Hook]], root: Path, version: str) -> tuple[FoundHook, ...]:
    """What the package below `root` has of the hooks; `version` may be empty."""
    source = Source(root)
    return tuple(FoundHook(table, hook, *_state(hook, source, version)) for table, hook in hooks)


def _state(hook: Hook, source: Source, version: str) -> tuple[str, str]:
    place = source.find(hook.module, hook.name)
    if place is None:
        if _is_other_release(hook, version):
            return NOT_THERE, f"{f'since {hook.since}' if hook.since else f'until {hook.until}'}"
        places = source.elsewhere(hook.name)
        return (MOVED, f"now in {', '.join(places)}") if places else (GONE, "")
    if hook.signature and isinstance(place, ast.FunctionDef | ast.AsyncFunctionDef):
        if not _same(hook.signature, now := signature(place)):
            return CHANGED, f"{hook.signature} -> {now}"
    elif hook.signature:
        return CHANGED, f"{hook.signature} -> no function"
    return THERE, ""


def _is_other_release(hook: Hook, version: str) -> bool:
    """Whether the row itself says that this release lacks it."""
    try:
        now = Version(version)
    except InvalidVersion:
        return False
    too_old = hook.since and now < Version(hook.since)
    return bool(too_old or (hook.until and now > Version(hook.until)))


def _same(relied_on: str, now: str) -> bool:
    """Whether a function has the parameters; `...` stands for any others."""
    first, others, last = relied_on.strip("()").partition("...")
    if not others:
        return relied_on == now
    given = now.strip("()").split(", ")
    wanted = [part for part in first.split(", ") if part]
    return given[: len(wanted)] == wanted and {part for part in last.split(", ") if part} <= {*given}


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A function's parameters without annotations and defaults."""
    given = function.args
    parts = [one.arg for one in (*given.posonlyargs, *given.args)]
    if given.posonlyargs:
        parts.insert(len(given.posonlyargs), "/")
    if given.vararg:
        parts.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        parts.append("*")
    parts += [one.arg for one in given.kwonlyargs]
    if given.kwarg:
        parts.append(f"**{given.kwarg.arg}")
    return f"({', '.join(parts)})"


class Source:
    """The modules of a package, parsed when they are asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module | None] = {}

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            path = self._root.joinpath(*module.split("."))
            files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
            self._trees[module] = ast.parse(files[0].read_bytes()) if files else None
        return self._trees[module]

    def find(self, module: str, name: str) -> ast.AST | None:
        """Where a module binds a name, or a class or one of its bases a member; None if it does not."""
        first, _, member = name.partition(".")
        place = _bound(self._tree(module), first)
        if place is None or not member:
            return place
        return self._member(module, place, member) if isinstance(place, ast.ClassDef) else None

    def _member(self, module: str, of: ast.ClassDef, member: str) -> ast.AST | None:
        for node in of.body:
            if _binds(node, member):
                return node
        for inner in ast.walk(of):
            targets = inner.targets if isinstance(inner, ast.Assign) else [getattr(inner, "target", None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr == member and ast.unparse(target.value) == "self":
                    return inner
        for base in of.bases:
            if (found := self._class(module, ast.unparse(base).partition("[")[0])) and (
                place := self._member(*found, member)
            ):
                return place
        return None

    def _class(self, module: str, name: str) -> tuple[str, ast.ClassDef] | None:
        """The class that a module calls by this name, of this package."""
        place = _bound(self._tree(module), name)
        if isinstance(place, ast.ClassDef):
            return module, place
        if not isinstance(place, ast.ImportFrom):
            return None
        parent = module.split(".")[: -place.level] if place.level else []
        origin = ".".join([*parent, *([place.module] if place.module else [])])
        alias = next(one.name for one in place.names if (one.asname or one.name) == name)
        return self._class(origin, alias) or self._imported_lazily(origin, alias)

    def _imported_lazily(self, package: str, name: str) -> tuple[str, ast.ClassDef] | None:
        """As `_class`, of a package that loads its modules on demand."""
        for file in sorted(self._root.joinpath(*package.split(".")).glob("*.py")):
            if re.search(rf"^class {name}\b", file.read_text(encoding="utf-8"), re.MULTILINE):
                return self._class(f"{package}.{file.stem}", name)
        return None

    def elsewhere(self, name: str) -> list[str]:
        """The other modules that define the function or class, with its member; at most three."""
        first = name.partition(".")[0]
        defined, found = re.compile(rf"^(class|def|async def) {first}\b".encode(), re.MULTILINE), []
        for file in sorted(self._root.rglob("*.py")):
            if defined.search(file.read_bytes()):
                parts = file.relative_to(self._root).with_suffix("").parts
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                if self.find(module, name) is not None:
                    found.append(module)
        return found[:3]


def _bound(tree: ast.Module | None, name: str) -> ast.AST | None:
    """The statement of a module that binds a name, also inside `if`, `try` and `with`."""
    for node in tree.body if tree else ():
        if _binds(node, name):
            return node
        if isinstance(node, ast.If | ast.Try | ast.With):
            blocks = [node, *getattr(node, "handlers", ())]
            statements = [
                inner for block in blocks for field in ("body", "orelse") for inner in getattr(block, field, ())
            ]
            if place := _bound(ast.Module(statements, []), name):
                return place
    return None


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name.partition(".")[0]) == name for alias in node.names)
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name


def _of_folder(folder: Path) -> Contract:
    names = import_names()
    inside = [name for name in names.values() if (folder / name).is_dir()]
    root = folder
    if not inside and folder.name in names.values() and (folder / "__init__.py").is_file():
        root, inside = folder.parent, [folder.name]
    if not inside:
        raise UserError(
            f"{folder} has none of the packages {', '.join(sorted(set(names.values())))}; give an unpacked package, a "
            "folder of packages such as site-packages, a wheel, or a release such as trl==1.16.0"
        )
    package = inside[0]
    version = _version(root, [one for one, name in names.items() if name == package])
    own = [(table, hook) for table, hook in rows() if hook.module.partition(".")[0] == package]
    return Contract(package, version, compare(own, root, version))


def _version(root: Path, packages: Sequence[str]) -> str:
    """The release in a folder, by the metadata beside it; empty without any."""
    for path in sorted(root.glob("*.dist-info")):
        name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
        if canonicalize_name(name) in packages:
            return version
    return ""


def unpacked(wheel: Path, folder: Path) -> Path:
    """The folder with a wheel's Python files and metadata."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.endswith((".py", "/METADATA"))])
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel} cannot be read as a wheel: {error}; give a wheel, a folder or a release") from error
    return folder


def single_release(given: str, what: str = "release") -> Requirement:
    """A package with one release, such as `trl==1.16.0`; an error says that it is no `what`."""
    try:
        wanted = Requirement(given)
    except InvalidRequirement:
        raise UserError(f"{given!r} is no {what}; write one such as trl==1.16.0") from None
    if len(exact := list(wanted.specifier)) != 1 or exact[0].operator != "==" or exact[0].version.endswith("*"):
        raise UserError(f"{given} is no single release; write {wanted.name}==<release>")
    return wanted


def downloaded(given: str, folder: Path) -> tuple[Path, str]:
    """The wheel of a release, from pip's sources, and a doubt about it; nothing is installed."""
    names = import_names()
    wanted = single_release(given, "release, wheel or folder")
    if canonicalize_name(wanted.name) not in names:
        raise UserError(unknown_name("package with hooks", wanted.name, sorted(names)))
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    # The wheel is read, not run.
    command += ["--ignore-requires-python", "--progress-bar", "off", "--dest", str(folder), given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = without_secrets(done.stderr)
    if not (wheels := sorted(folder.glob("*.whl"))):
        raise UserError(_why_not(given, output))
    yanked = re.search(r"yanked version.*?Reason for being yanked: ([^\n]*)", output, re.DOTALL)
    return wheels[0], f"yanked: {yanked[1]}" if yanked else ""


def _why_not(given: str, output: str) -> str:
    python = ".".join(map(str, sys.version_info[:2]))
    known = re.search(r"from versions: ([^)]+)\)", output)
    releases = [one.strip() for one in known[1].split(",")] if known else ["none"]
    if releases != ["none"]:
        return (
            f"{given} does not exist, or has no wheel for Python {python}\n"
            f"The newest releases: {', '.join(releases[-4:])}\n"
            f"With another Python: python -m pip download --no-deps {given}; then give the wheel's file"
        )
    last = [line for line in output.splitlines() if line.startswith("ERROR")] or ["no message"]
    return (
        f"{given} cannot be downloaded: {last[0].removeprefix('ERROR: ')}\n"
        "Sources are pip's own settings: python -m pip config debug"
    )
