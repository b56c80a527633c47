"""A tiny stack of hand-made wheels, served by an index on loopback: real uv, real builds, no outside network."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from workflow.stacks.definition import ENVS
from workflow.stacks.uv import find_uv

from .. import patience
from ..planted import INDEX_USER

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def write_wheel(folder, name, version, *, code="", payload=0, script=False, files=None):
    """A wheel with one module, `payload` random bytes, more files and, if asked for, a console script of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    contents = {
        f"{module}.py": (
            code or f"def answer():\n    return '{version}'\n\n\ndef main():\n    print(answer())\n"
        ).encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if payload:
        contents[f"{module}_payload.bin"] = os.urandom(payload)
    if script:
        contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {module}:main\n".encode()
    contents |= files or {}
    record = ""
    for path, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(content)}\n"
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in contents.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return wheel


def interpreter(folder, *wheels, below=sys.executable):
    """An environment of its own with those wheels: what somebody else has installed."""
    uv = find_uv()
    subprocess.run([uv, "venv", "-q", "--python", below, folder], check=True)
    python = folder / "bin" / "python"
    if wheels:
        subprocess.run([uv, "pip", "install", "-q", "--no-index", "--no-deps", "--python", python, *wheels], check=True)
    return python


class _Handler(SimpleHTTPRequestHandler):
    gate: threading.Event
    asked: threading.Event

    def do_GET(self):
        if self.path.endswith(".whl"):
            self.asked.set()
            self.gate.wait()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the builder was killed
            super().do_GET()

    def do_HEAD(self):
        # uv reads metadata by byte ranges where it can; this server has none, and says so.
        self.send_error(405)

    def log_message(self, format, *args):
        pass


@dataclass
class Index:
    """A package index on loopback; while `gate` is cleared, it holds every wheel back."""

    folder: Path
    url: str
    gate: threading.Event
    asked: threading.Event

    def add(self, wheel, *, claimed_sha256=None):
        """Serves that wheel; the index page claims its hash, or another one."""
        name = wheel.name.rpartition("-")[0] if wheel.name.endswith(".tar.gz") else wheel.name.split("-")[0]
        name = name.replace("_", "-")
        page = self.folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "files").mkdir(exist_ok=True)
        shutil.copy(wheel, self.folder / "files" / wheel.name)
        sha256 = claimed_sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
        with page.open("a") as text:
            text.write(f'<a href="../../files/{wheel.name}#sha256={sha256}">{wheel.name}</a>\n')


@pytest.fixture
def index(tmp_path):
    """An empty index, serving until the test ends."""
    folder = tmp_path / "index"
    (folder / "simple").mkdir(parents=True)
    gate, asked = threading.Event(), threading.Event()
    gate.set()
    handler = type("Handler", (_Handler,), {"gate": gate, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield Index(folder, f"http://{INDEX_USER}127.0.0.1:{server.server_address[1]}/simple", gate, asked)
    gate.set()
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Site:
    """A place with its own definitions, stacks, uv cache and pip settings, and the command line run there."""

    root: Path
    envs: Path
    stacks: Path
    environ: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments):
        return [sys.executable, "-m", "workflow.stacks", "--envs", str(self.envs), *arguments]

    def run(self, *arguments, **environ):
        return patience.run(self.command(*arguments), 180, env={**self.environ, **environ}, cwd=self.root)

    def start(self, *arguments, **environ):
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environ | environ,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def build(self, name="tiny", **environ):
        return self.run("build", name, "--stacks-dir", str(self.stacks), **environ)

    def write_stack(self, requirements, *, name="tiny", probes="[]", extra=""):
        folder = self.envs / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stack.yaml").write_text(
            "description: made by a test\ntrainer: trl\ntrainer_version: 1.16.0\nengine: transformers\n"
            f'python: "{PYTHON}"\naccelerator: cpu\ndisk_gib: 0.001\n{extra}'
        )
        (folder / "requirements.in").write_text(requirements)
        (folder / "verify.py").write_text(
            "import sys\nfrom pathlib import Path\n\nsys.path.insert(0, str(Path(__file__).resolve().parents[1]))\n"
            f"from _verify import Probe, main\n\nsys.exit(main({probes}))\n"
        )
        return folder

    def passed(self):
        """The verdicts of environments that have passed their checks: all others do not count."""
        return list(self.stacks.rglob("verify*.json"))

    def built(self, name="tiny"):
        """Everything under the stack's folder but the lock file: finished and unfinished environments alike."""
        folder = self.stacks / name
        return sorted(path for path in folder.iterdir() if path.name != ".lock") if folder.is_dir() else []


@pytest.fixture
def site(tmp_path, index):
    """A site whose pip knows only the index on loopback; it defines no stack yet."""
    envs = tmp_path / "envs"
    envs.mkdir()
    for shared in ENVS.glob("_*.py"):
        shutil.copy(shared, envs)
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    environ |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index.url,
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_HTTP_RETRIES": "0",
        "UV_HTTP_TIMEOUT": "900",  # the index makes uv wait until a test has done something else
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "PYTHONPATH": str(ENVS.parent),
    }
    return Site(tmp_path, envs, tmp_path / "stacks", environ)


@pytest.fixture
def tiny(site, index, tmp_path):
    """The site with one locked stack, `tiny`: rbt-alpha with a console script, and rbt-beta."""
    index.add(write_wheel(tmp_path / "wheels", "rbt-alpha", "1.0", script=True))
    index.add(write_wheel(tmp_path / "wheels", "rbt-beta", "2.0"))
    probe = "Probe('alpha answers', 'rbt-alpha', '1.0', lambda: __import__('rbt_alpha').answer())"
    site.write_stack("rbt-alpha==1.0\nrbt-beta\n", probes=f"[{probe}]")
    locked = site.run("lock", "tiny")
    assert locked.returncode == 0, locked.stderr
    return site


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("a full disk needs a mount, and that needs root")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"a full disk needs a mount: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)
