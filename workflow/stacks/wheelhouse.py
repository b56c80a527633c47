"""Downloads the files of a stack's lock for a machine without a network, and can split them into parts."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from common.errors import UserError
from common.files import file_sha256
from workflow.stacks.definition import ENVS, Stack, load_stack, lock_id
from workflow.stacks.distfiles import DistFile, Target, choose_files, download, file_sizes, locate_files
from workflow.stacks.lockfile import check_lock, is_pinned
from workflow.stacks.staging import explaining_disk
from workflow.stacks.uv import configured_uv, redacted

_LISTS = ("requirements.txt", "requirements-source.txt", "SHA256SUMS")
_MB = 1_000_000
_MOST_PARTS = 999
_HAVE = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*==\s*(?P<version>[^\s;#]+)")
_WITHOUT_VERSION = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*@\s")
_JOIN = Path(__file__).with_name("join.sh")
_BUILD = """\
Build the stack from it, in the repository:
  PIP_NO_INDEX=1 PIP_FIND_LINKS=$out/wheels python -m workflow.stacks build {name}"""
_INSTALL = """\
It lacks {lacks} packages that the target has; install into an environment that sees those \
(\\`python3 -m venv --system-site-packages ENV\\`):
  ENV/bin/python -m pip install --no-index --find-links $out/wheels --no-deps \\
    --require-hashes -r $out/requirements.txt"""
_INSTALL_SOURCES = "and then, from source: the same with --no-build-isolation and $out/requirements-source.txt"


@dataclass(frozen=True)
class Selection:
    """The files of a lock that a wheelhouse holds, and the packages that it leaves out."""

    stack: Stack
    target: Target
    files: list[DistFile]
    left_out: dict[str, str]
    """Versions of the packages that the target already has, by name."""
    different: dict[str, tuple[str, str]]
    """The target's and the lock's version of packages that differ; the lock's are collected."""

    def notes(self) -> list[str]:
        """Notes on the selection for the user, one line each."""
        lines = []
        if self.left_out:
            names = ", ".join(f"{name} {version}" for name, version in self.left_out.items())
            lines.append(f"left out, since the target has them: {names}")
        lines += [
            f"{name}: the target has {present}, the lock wants {version}, which is collected"
            for name, (present, version) in self.different.items()
        ]
        if sdists := [file.name for file in self.files if not file.is_wheel]:
            lines.append(f"built from source on the target (compiler, CUDA toolkit): {', '.join(sdists)}")
        if self.target.python != self.stack.python:
            lines.append(
                f"the lock was resolved for Python {self.stack.python}: `build` needs that release, and packages that "
                f"only Python {self.target.python} needs are missing here"
            )
        return lines


def select(name: str, target: Target, have: str | None = None, envs: Path = ENVS) -> Selection:
    """Locates the files of the stack's lock for that target; downloads nothing.

    `have` lists the packages that the target has: a `pip freeze` file, or `name==version` separated by commas.
    """
    stack = load_stack(name, envs)
    pins = check_lock(name, envs)
    present = parse_have(have) if have else {}
    left_out: dict[str, str] = {}
    different: dict[str, tuple[str, str]] = {}
    for pin in pins:
        if pin.name not in present:
            continue
        version = present[pin.name]
        if version and is_pinned(pin.version, version):
            left_out[pin.name] = version
        else:
            different[pin.name] = (version or "an unknown version", pin.version)
    wanted = [pin for pin in pins if pin.name not in left_out]
    uv = configured_uv(main_index_first=True)
    stack.log(f"looking for {len(wanted)} of {len(pins)} packages in {uv.sources}")
    files = locate_files(wanted, uv, target.python, stack.torch_backend) if wanted else {}
    return Selection(stack, target, choose_files(wanted, files, target, stack.source_builds), left_out, different)


def file_list(selection: Selection) -> str:
    """The files and their sizes in MB as text; asks the servers for sizes that the index does not give."""
    unsized = [file for file in selection.files if file.size is None]
    asked = dict(zip([file.name for file in unsized], file_sizes([file.url for file in unsized]), strict=True))
    sizes = {file.name: asked.get(file.name, file.size) for file in selection.files}
    known = [size for size in sizes.values() if size is not None]
    lines = [f"{'?' if size is None else f'{size / _MB:.2f}':>9} MB  {name}" for name, size in sizes.items()]
    unknown = f" and {len(sizes) - len(known)} of unknown size" if len(known) < len(sizes) else ""
    lines += [f"{sum(known) / _MB:9.2f} MB  in {len(known)} files{unknown}, {selection.target}"]
    return "\n".join([*lines, *selection.notes()])


def collect(selection: Selection, out: Path, part_mb: float | None = None) -> Path:
    """Downloads every file to `out/wheels`, checks it and writes the lists; `part_mb` also writes `out/parts`.

    A part has at most `part_mb` MB (10^6 bytes). A file with the right hash is not downloaded again, and a partial
    file is resumed.
    """
    stack, wheels, parts = selection.stack, out / "wheels", out / "parts"
    own = {"wheels", "parts", "manifest.json", *_LISTS}  # earlier versions wrote manifest.json
    if out.exists() and (foreign := sorted(path.name for path in out.iterdir() if path.name not in own)):
        # `parts` is deleted below, so `out` must be a wheelhouse.
        raise UserError(f"{out} contains {foreign[0]}, which is no part of a wheelhouse; give a new folder with --out")
    advice = "; downloaded files stay: make room and run again, or collect elsewhere with --out"
    with explaining_disk(stack.name, out, advice):
        wheels.mkdir(parents=True, exist_ok=True)
        digests = _download_missing(selection, wheels)
        sizes = {name: (wheels / name).stat().st_size for name in digests}
        _write_lists(selection, out, digests)
        shutil.rmtree(parts, ignore_errors=True)
        if part_mb is not None:
            _write_parts(selection, out, list(sizes), round(part_mb * _MB))
    written = f" in {len(list(parts.glob('part-*')))} parts" if part_mb is not None else ""
    stack.log(f"{len(sizes)} files, {sum(sizes.values()) / _MB:.1f} MB{written}, {selection.target}: {out}")
    for note in selection.notes():
        stack.log(note)
    return out


def parse_have(text: str) -> dict[str, str | None]:
    """Version by normalized name; None where the target gives no version (`name @ file://…` of pip freeze)."""
    path: Path | None = None
    with contextlib.suppress(OSError):  # a long list is no valid file name
        path = Path(text) if Path(text).is_file() else None
    if path is None and "==" not in text:
        raise UserError(f"--have: {text!r} is neither a file nor a list such as torch==2.11.0,numpy==2.2.6")
    items = path.read_text(encoding="utf-8").splitlines() if path else re.split(r"[,\s]+", text.strip())
    have: dict[str, str | None] = {}
    for number, item in enumerate((item.strip() for item in items), start=1):
        if not item or item.startswith(("#", "-")):
            continue  # pip freeze writes editable packages as `-e …`
        match = _HAVE.match(item) or _WITHOUT_VERSION.match(item)
        if match is None:
            where = f"{path}:{number}" if path else "--have"
            raise UserError(f"{where}: {item!r} is not understood; wanted name==version, as `pip freeze` prints it")
        have[canonicalize_name(match["name"])] = match.groupdict().get("version")
    return have


def _download_missing(selection: Selection, wheels: Path) -> dict[str, str]:
    """Downloads the files that the folder lacks; the sha256 of every file by its name, in the selection's order."""
    digests = {file.name: file_sha256(wheels / file.name) for file in selection.files if (wheels / file.name).is_file()}
    missing = [file for file in selection.files if digests.get(file.name) not in file.hashes]
    needed = sum(file.size or 0 for file in missing)
    if needed > (free := shutil.disk_usage(wheels).free):
        raise UserError(
            f"{selection.stack.name}: {needed / _MB:.0f} MB are to be downloaded, and {wheels.resolve()} has "
            f"{free / _MB:.0f} MB free; make room, or collect elsewhere with --out"
        )
    # The hash is in the name: a partial file of another build of the same version is not resumed.
    partial = [wheels / f".{file.name}.{file.hashes[0][:12]}.part" for file in missing]
    addresses = [(file.url, path) for file, path in zip(missing, partial, strict=True)]
    for count, number in enumerate(download(addresses), start=1):
        file, path = missing[number], partial[number]
        digest, size = file_sha256(path), path.stat().st_size
        if digest not in file.hashes:
            path.unlink()
            raise UserError(
                f"{file.name} from {redacted(file.url)} is not the file that the lock names "
                f"({selection.stack.lock}:{file.pin.line}): its sha256 is {digest}. Either the source serves another "
                "build of that version, or the file was changed; it was removed."
            )
        path.replace(wheels / file.name)
        digests[file.name] = digest
        selection.stack.log(f"{count}/{len(missing)} {file.name} {size / _MB:.1f} MB")
    return {file.name: digests[file.name] for file in selection.files}


def _write_lists(selection: Selection, out: Path, digests: dict[str, str]) -> None:
    """Writes SHA256SUMS, and separate pip requirements for wheels and sdists, for targets that do not use `build`."""
    stack = selection.stack
    head = [f"{stack.name}, lock {lock_id(stack.name, stack.folder.parent)}, {selection.target}", *selection.notes()]
    for name, wheels in (("requirements.txt", True), ("requirements-source.txt", False)):
        files = [file for file in selection.files if file.is_wheel == wheels]
        lines = [f"{file.pin.name}=={file.pin.version} --hash=sha256:{digests[file.name]}" for file in files]
        (out / name).unlink(missing_ok=True)
        if lines or wheels:
            (out / name).write_text("\n".join([*(f"# {text}" for text in head), *lines, ""]), encoding="utf-8")
    sums = {name: file_sha256(out / name) for name in _LISTS[:-1] if (out / name).is_file()}
    _write_sums(out, sums | {f"wheels/{name}": digest for name, digest in digests.items()})


def _write_sums(folder: Path, digests: dict[str, str]) -> None:
    lines = [f"{digest}  {name}\n" for name, digest in digests.items()]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def _write_parts(selection: Selection, out: Path, names: list[str], limit: int) -> None:
    """Writes the parts with `tar | split`, and SHA256SUMS and join.sh beside them; equal files give equal parts."""
    contents = [*(name for name in _LISTS if (out / name).is_file()), *(f"wheels/{name}" for name in names)]
    needed, free = sum((out / name).stat().st_size for name in contents), shutil.disk_usage(out).free
    if needed > _MOST_PARTS * limit:
        raise UserError(
            f"parts of {limit / _MB:g} MB are too small: {needed / _MB:.1f} MB would be more than {_MOST_PARTS} parts"
        )
    if needed > free:
        raise UserError(f"{out.resolve()} has {free / _MB:.0f} MB free, and the parts need {needed / _MB:.0f} MB more")
    parts = out / "parts"
    parts.mkdir()
    archive = ["tar", "--create", "--mtime=2000-01-01 UTC", "--owner=0", "--group=0", "--numeric-owner"]
    archive += ["--mode=u=rw,go=r", f"--directory={out}", *contents]
    split = ["split", f"--bytes={limit}", "--suffix-length=3", "--numeric-suffixes=1", "-", str(parts / "part-")]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as tar:
        done = subprocess.run(split, stdin=tar.stdout, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or tar.returncode != 0:
        raise UserError(f"{selection.stack.name}: the parts could not be written to {parts}: {done.stderr.strip()}")
    _write_sums(parts, {path.name: file_sha256(path) for path in sorted(parts.iterdir())})
    after = _BUILD.format(name=selection.stack.name)
    if selection.left_out:
        after = _INSTALL.format(lacks=len(selection.left_out))
        if any(not file.is_wheel for file in selection.files):
            after += f"\n{_INSTALL_SOURCES}"
    script = _JOIN.read_text(encoding="utf-8").replace("@NAME@", selection.stack.name)
    script = script.replace("@COUNT@", str(len(selection.files))).replace("@NEXT@", after)
    (parts / "join.sh").write_text(script, encoding="utf-8")
