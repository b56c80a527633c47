"""A small conda channel: hand-made packages, a lock that names them, and a server that can do what channels do."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import threading
from dataclasses import dataclass
from pathlib import Path

PLACEHOLDER = "/placehold" * 20
"""Stands for the prefix in files that hold it; conda puts the real one there."""


def write_package(folder, name, version, files, *, links=None, depends=()):
    """A conda package for linux-64, build `0`; text that holds PLACEHOLDER gets the prefix when it is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    listed = []
    for path, content in contents.items():
        entry = {"_path": path, "path_type": "hardlink", "size_in_bytes": len(content)}
        entry["sha256"] = hashlib.sha256(content).hexdigest()
        if PLACEHOLDER.encode() in content:
            entry |= {"file_mode": "text", "prefix_placeholder": PLACEHOLDER}
        listed.append(entry)
    listed += [{"_path": path, "path_type": "softlink"} for path in links or {}]
    index = {"name": name, "version": version, "build": "0", "build_number": 0, "subdir": "linux-64"}
    index |= {"arch": "x86_64", "platform": "linux", "depends": list(depends)}
    paths = {"paths": listed, "paths_version": 1}
    information = {"index.json": json.dumps(index), "paths.json": json.dumps(paths)}
    information["files"] = "".join(f"{entry['_path']}\n" for entry in listed)
    information["about.json"] = "{}"
    prefixed = [entry["_path"] for entry in listed if "prefix_placeholder" in entry]
    information["has_prefix"] = "".join(f"{PLACEHOLDER} text {path}\n" for path in prefixed)
    package = folder / f"{name}-{version}-0.tar.bz2"
    with tarfile.open(package, "w:bz2") as archive:
        for path, content in {
            **{f"info/{key}": text.encode() for key, text in information.items()},
            **contents,
        }.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o755 if path.startswith("bin/") else 0o644
            archive.addfile(member, io.BytesIO(content))
        for path, target in (links or {}).items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return package


def write_python(folder):
    """A package named python: this machine's interpreter, which takes the folder it lies in for its own."""
    release = f"{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix) / "bin" / f"python{release}"
    files = {"pyvenv.cfg": f"home = {base.parent}\ninclude-system-site-packages = false\n"}
    files[f"lib/python{release}/site-packages/README"] = "packages\n"
    links = {"bin/python": str(base), f"bin/python{release}": "python"}
    return write_package(folder, "python", f"{release}.7", files, links=links)


def write_python_package(folder, name, version, *, payload=0):
    """A Python package that conda installs, with its metadata; `payload` random bytes make it large."""
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    module = name.replace("-", "_")
    info = f"{site}/{module}-{version}.dist-info"
    files = {
        f"{site}/{module}.py": "origin = 'conda'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/INSTALLER": "conda\n",
        f"{info}/RECORD": f"{module}.py,,\n{module}-{version}.dist-info/METADATA,,\n"
        f"{module}-{version}.dist-info/INSTALLER,,\n{module}-{version}.dist-info/RECORD,,\n",
    }
    if payload:
        files[f"share/{name}.bin"] = os.urandom(payload)
    return write_package(folder, name, version, files, depends=("python",))


@dataclass
class Channel:
    """A channel on loopback; while `gate` is cleared, it holds every package back."""

    folder: Path
    url: str
    gate: threading.Event
    asked: threading.Event

    @property
    def packages(self):
        return sorted((self.folder / "linux-64").iterdir())

    def lock(self, wishes, folder, *, url=None):
        """Writes environment.yml and a conda-lock.yml of everything that the channel has."""
        environment = "channels:\n  - nodefaults\ndependencies:\n" + "".join(f'  - "{wish}"\n' for wish in wishes)
        (folder / "environment.yml").write_text(environment)
        text = "version: 1\nmetadata:\n  platforms: [linux-64]\npackage:\n"
        for path in self.packages:
            name, version, _ = path.name.rsplit("-", 2)
            content = path.read_bytes()
            text += f"- name: {name}\n  version: '{version}'\n  manager: conda\n  platform: linux-64\n"
            text += "  dependencies: {}\n" if name == "python" else "  dependencies: {python: '', __glibc: ''}\n"
            text += f"  url: {url or self.url}/linux-64/{path.name}\n  hash:\n"
            text += f"    md5: {hashlib.md5(content).hexdigest()}\n    sha256: {hashlib.sha256(content).hexdigest()}\n"
        (folder / "conda-lock.yml").write_text(text)
