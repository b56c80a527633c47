"""A wheelhouse holds what the lock names, travels in parts and is enough for a build: real uv, pip and wheels."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.tags import sys_tags

from common.errors import UserError
from workflow.stacks import wheelhouse
from workflow.stacks.definition import load_stack, lock_id
from workflow.stacks.distfiles import DistFile, Target, choose_files, download
from workflow.stacks.lockfile import Pin, parse_lock
from workflow.stacks.wheelhouse import Selection, parse_have

from .conftest import PYTHON, Index, Site, write_wheel

KB = 1000
LIMIT_KB = 40


def collect(site: Site, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The wheelhouse of `tiny` in the folder `house`."""
    return site.run("wheelhouse", "tiny", "--out", "house", *arguments, **environ)


def join(parts: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """The script that travels with the parts, run as on a machine that has a shell, tar and coreutils."""
    return subprocess.run(["sh", parts / "join.sh", out], capture_output=True, text=True, check=False)


def lock_by_hand(site: Site, wheels: dict[str, Path], extra: str = "") -> None:
    """A stack whose lock pins those files by hand: `uv pip compile` takes only what fits this machine."""
    folder = site.write_stack("".join(f"{pin}\n" for pin in wheels), extra=extra)
    lines = [f"{pin} \\\n    --hash=sha256:{sha256(path)}\n" for pin, path in wheels.items()]
    (folder / "requirements.lock").write_text("".join(lines))


def three_wheels(folder: Path) -> dict[str, Path]:
    """Wheels by their pins; rbt-large is larger than two parts."""
    return {
        "rbt-alpha==1.0": write_wheel(folder, "rbt-alpha", "1.0", script=True),
        "rbt-beta==2.0": write_wheel(folder, "rbt-beta", "2.0"),
        "rbt-large==3.0": write_wheel(folder, "rbt-large", "3.0", payload=100 * KB),
    }


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def large(site: Site, index: Index, tmp_path: Path) -> Site:
    """A locked stack of three wheels, one of which is larger than two parts."""
    wheels = three_wheels(tmp_path / "made")
    for wheel in wheels.values():
        index.add(wheel)
    lock_by_hand(site, wheels)
    return site


def select_by_hand(site: Site, folder: Path, wheels: dict[str, Path]) -> Selection:
    """What `select` would find of that lock; its files lie in the folder already."""
    lock_by_hand(site, wheels)
    pins = parse_lock(site.envs / "tiny" / "requirements.lock")
    files = [DistFile(pin, wheels[f"{pin.name}=={pin.version}"].name, "", None, pin.hashes[0]) for pin in pins]
    return Selection(load_stack("tiny", site.envs), Target(PYTHON, "manylinux_2_28_x86_64"), files, {}, {})


@pytest.fixture
def parts(site: Site, tmp_path: Path) -> Path:
    """The same stack's parts, carried to another place; nothing was fetched for them."""
    house = tmp_path / "house"
    selection = select_by_hand(site, house, three_wheels(house / "wheels"))
    with pytest.raises(UserError, match=r"are too small: 0\.\d MB would be more than 999 parts"):
        wheelhouse.collect(selection, house, 0.0001)
    wheelhouse.collect(selection, house, LIMIT_KB / KB)
    shutil.move(house / "parts", tmp_path / "carried")
    return tmp_path / "carried"


@pytest.mark.full("stacks are built")
def test_parts_are_joined_and_built_from_without_an_index(large: Site, index: Index) -> None:
    done = collect(large, "--part-mb", str(LIMIT_KB / KB))
    assert done.returncode == 0, done.stderr
    carried = shutil.move(large.root / "house" / "parts", large.root / "carried")
    parts = sorted(carried.iterdir())
    assert [part.name for part in parts] == [
        "SHA256SUMS",
        "join.sh",
        *(f"part-00{n}" for n in range(1, len(parts) - 1)),
    ]
    assert f"in {len(parts) - 2} parts" in done.stderr and len(parts) > 4
    assert {part.stat().st_size for part in parts[2:-1]} == {LIMIT_KB * KB}
    assert all(part.stat().st_size <= LIMIT_KB * KB for part in parts)
    joined = join(carried, large.root / "joined")
    assert joined.returncode == 0, joined.stderr
    found = large.root / "joined" / "wheels"
    assert f"PIP_NO_INDEX=1 PIP_FIND_LINKS={found} python -m workflow.stacks build tiny" in joined.stdout
    for wheel in (index.folder / "files").iterdir():
        assert (found / wheel.name).read_bytes() == wheel.read_bytes()
    first, *pins = (large.root / "joined" / "requirements.txt").read_text().splitlines()
    target = f"for Python {PYTHON} on manylinux_2_28_{platform.machine()}"
    assert first == f"# tiny, lock {lock_id('tiny', large.envs)}, {target}"
    assert [pin.split()[0] for pin in pins] == ["rbt-alpha==1.0", "rbt-beta==2.0", "rbt-large==3.0"]
    index.asked.clear()
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_INDEX": "1"}
    built = large.build(PIP_FIND_LINKS="joined/wheels", UV_CACHE_DIR=str(large.root / "cold"), **offline)
    assert built.returncode == 0, built.stderr
    assert Path(built.stdout.strip()).name == lock_id("tiny", large.envs)
    assert not index.asked.is_set()


@pytest.mark.parametrize("damage", ["changed", "short", "removed"])
def test_a_damaged_part_is_refused_by_name(site: Site, parts: Path, damage: str) -> None:
    piece = parts / "part-002"
    content = bytearray(piece.read_bytes())
    content[7] ^= 1
    piece.unlink()
    if damage != "removed":
        piece.write_bytes(content if damage == "changed" else content[:100])
    joined = join(parts, site.root / "joined")
    assert joined.returncode == 1 and "part-002: FAILED" in joined.stdout and "part-001" not in joined.stdout
    assert "copy the parts named above again" in joined.stderr
    assert not list((site.root / "joined").iterdir())


@pytest.mark.full("stacks are built")
def test_what_is_there_and_right_is_not_fetched_again(large: Site, index: Index) -> None:
    assert collect(large).returncode == 0
    assert sorted(path.name for path in (large.root / "house").iterdir()) == [
        "SHA256SUMS",
        "requirements.txt",
        "wheels",
    ]
    index.asked.clear()
    again = collect(large, "--part-mb", "1")
    assert again.returncode == 0 and "in 1 parts" in again.stderr and not index.asked.is_set()
    beta = large.root / "house" / "wheels" / "rbt_beta-2.0-py3-none-any.whl"
    beta.write_bytes(b"half")
    mended = collect(large)
    assert mended.returncode == 0 and "1/1 rbt_beta-2.0-py3-none-any.whl" in mended.stderr
    assert not (large.root / "house" / "parts").exists()  # those of the last run said another thing


def test_a_file_that_is_not_the_locks_is_refused(tiny: Site, index: Index, tmp_path: Path) -> None:
    other = write_wheel(tmp_path / "other", "rbt-beta", "2.0", code="evil = True\n")
    shutil.copy(other, index.folder / "files")  # behind the hash that the index's page claims
    failed = collect(tiny)
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "rbt_beta-2.0-py3-none-any.whl from http" in failed.stderr
    assert "is not the file that the lock names" in failed.stderr and "requirements.lock:6)" in failed.stderr
    assert [path.name for path in (tiny.root / "house" / "wheels").iterdir()] == ["rbt_alpha-1.0-py3-none-any.whl"]
    # The index says itself that it has another file.
    (index.folder / "simple" / "rbt-beta" / "index.html").unlink()
    index.add(other)
    told = collect(tiny, UV_CACHE_DIR=str(tmp_path / "cold"))
    assert told.returncode == 1 and "rbt-beta==2.0: rbt_beta-2.0-py3-none-any.whl is not a file that" in told.stderr


@pytest.mark.full("stacks are built")
def test_what_the_target_has_is_left_out(tiny: Site) -> None:
    freeze = tiny.root / "freeze.txt"
    freeze.write_text("# of the target\n-e /somewhere\nRBT_alpha==1.0+cu130\nother==9\nrbt-beta==1.9\n")
    done = collect(tiny, "--have", str(freeze))
    assert done.returncode == 0, done.stderr
    assert "left out, since the target has them: rbt-alpha 1.0+cu130" in done.stderr
    assert "rbt-beta: the target has 1.9, the lock wants 2.0, which is collected" in done.stderr
    kept = (tiny.root / "house" / "requirements.txt").read_text()
    assert "# left out, since the target has them: rbt-alpha 1.0+cu130\n" in kept
    assert "# rbt-beta: the target has 1.9, the lock wants 2.0, which is collected\n" in kept
    wheels = tiny.root / "house" / "wheels"
    assert [path.name for path in wheels.iterdir()] == ["rbt_beta-2.0-py3-none-any.whl"]
    # What is written for pip is what pip takes.
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(wheels), "--no-deps"]
    command += ["--require-hashes", "-r", str(wheels.parent / "requirements.txt"), "--target", str(tiny.root / "env")]
    installed = subprocess.run(command, env=tiny.environ, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    assert (tiny.root / "env" / "rbt_beta.py").is_file()


def test_have_is_read_as_pip_freeze_writes_it(tmp_path: Path) -> None:
    assert parse_have("torch==2.11.0,Foo_Bar==1") == {"torch": "2.11.0", "foo-bar": "1"}
    assert len(parse_have(",".join(f"package-{number}==1.0" for number in range(500)))) == 500
    (tmp_path / "freeze").write_text("conda-made @ file:///croot/x\nb==2 ; python_version > '3'\n")
    assert parse_have(str(tmp_path / "freeze")) == {"conda-made": None, "b": "2"}
    with pytest.raises(UserError, match="'torch' is neither a file nor a list"):
        parse_have("torch")
    with pytest.raises(UserError, match="'numpy' is not understood"):
        parse_have("torch==1,numpy")


@pytest.mark.full("stacks are built")
def test_listing_fetches_nothing(large: Site, index: Index) -> None:
    index.asked.clear()
    local = collect(large, "--list", PIP_NO_INDEX="1", PIP_INDEX_URL="", PIP_FIND_LINKS=str(index.folder / "files"))
    assert local.returncode == 0, local.stderr
    size = (index.folder / "files" / "rbt_large-3.0-py3-none-any.whl").stat().st_size / 1e6
    assert f"{size:9.2f} MB  rbt_large-3.0-py3-none-any.whl" in local.stdout.splitlines()
    assert f"in 3 files, for Python {PYTHON} on manylinux_2_28_{platform.machine()}" in local.stdout
    untold = collect(large, "--list")  # this server answers no HEAD
    assert "? MB  rbt_large" in untold.stdout and "3 of unknown size" in untold.stdout
    assert not index.asked.is_set() and not (large.root / "house").exists()


def test_each_target_gets_its_best_wheel() -> None:
    pin = Pin("native", "1.0", 1, None, ["0" * 64])
    tags = ("cp312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_28_x86_64", "cp311-abi3-linux_x86_64")
    files = {"native": [DistFile(pin, f"native-1.0-{tag}.whl", "", None, "0" * 64) for tag in tags]}

    def found(python: str, platform: str) -> str:
        return choose_files([pin], files, Target(python, platform))[0].name

    assert found("3.12", "manylinux_2_39_x86_64") == f"native-1.0-{tags[1]}.whl"
    assert found("3.12", "manylinux_2_27_x86_64") == f"native-1.0-{tags[0]}.whl"
    assert found("3.11", "manylinux_2_28_x86_64") == f"native-1.0-{tags[2]}.whl"
    with pytest.raises(UserError, match=r"no file for Python 3\.12 on manylinux_2_28_aarch64 of 1 of 1") as caught:
        found("3.12", "manylinux_2_28_aarch64")
    assert f"native==1.0: there are wheels for {', '.join(sorted(tags))}" in str(caught.value)
    with pytest.raises(UserError, match="manylinux_2_<glibc"):
        found("3.12", "linux")
    with pytest.raises(UserError, match="feature release"):
        found("3.12.1", "manylinux_2_28_x86_64")


def test_the_tags_are_those_of_this_very_machine() -> None:
    name, _, glibc = platform.libc_ver()[1].rpartition(".")
    if platform.libc_ver()[0] != "glibc" or name != "2":
        pytest.skip("not a machine with glibc")
    assert Target(PYTHON, f"manylinux_2_{glibc}_{platform.machine()}").tags() == list(sys_tags())


@pytest.mark.full("stacks are built")
def test_a_source_build_travels_as_its_source_and_nothing_of_it_is_run(
    site: Site, index: Index, tmp_path: Path
) -> None:
    sdist = tmp_path / "rbt_source-1.0.tar.gz"
    trap = f"open({str(tmp_path / 'was-run')!r}, 'w')\nraise SystemExit('built')\n".encode()
    with tarfile.open(sdist, "w:gz") as archive:
        member = tarfile.TarInfo("rbt_source-1.0/setup.py")
        member.size = len(trap)
        archive.addfile(member, io.BytesIO(trap))
    index.add(sdist)
    alpha = write_wheel(tmp_path / "made", "rbt-alpha", "1.0")
    index.add(alpha)
    lock_by_hand(site, {"rbt-alpha==1.0": alpha, "rbt-source==1.0": sdist})
    refused = collect(site)
    assert refused.returncode == 1
    assert "rbt-source==1.0: there is only its source; add it to `source_builds`" in refused.stderr
    lock_by_hand(site, {"rbt-alpha==1.0": alpha, "rbt-source==1.0": sdist}, "source_builds: [rbt-source]\n")
    done = collect(site)
    assert done.returncode == 0, done.stderr
    assert "built from source on the target (compiler, CUDA toolkit): rbt_source-1.0.tar.gz" in done.stderr
    assert (site.root / "house" / "wheels" / sdist.name).read_bytes() == sdist.read_bytes()
    assert "rbt-source" not in (site.root / "house" / "requirements.txt").read_text()
    assert "rbt-source==1.0" in (site.root / "house" / "requirements-source.txt").read_text()
    assert not (tmp_path / "was-run").exists()


def test_a_local_version_that_no_index_has_is_explained(site: Site, index: Index, tmp_path: Path) -> None:
    index.add(write_wheel(tmp_path / "made", "rbt-alpha", "1.0"))
    lock_by_hand(site, {"rbt-alpha==1.0+cu130": write_wheel(tmp_path / "made", "rbt-alpha", "1.0+cu130")})
    failed = collect(site)
    assert failed.returncode == 1 and "rbt-alpha==1.0+cu130 has a local version (+cu130)" in failed.stderr
    assert "PIP_FIND_LINKS" in failed.stderr


def test_a_folder_of_somebody_elses_is_not_touched(tiny: Site) -> None:
    (tiny.root / "house" / "parts").mkdir(parents=True)
    (tiny.root / "house" / "thesis.tex").touch()
    failed = collect(tiny, "--part-mb", "1")
    assert failed.returncode == 1 and "contains thesis.tex, which is no part of a wheelhouse" in failed.stderr


class _Faltering(BaseHTTPRequestHandler):
    """Serves `content`, at most 1000 bytes a time although it promises the rest, and only to who knows the password."""

    content: bytes
    ranges: list[str | None]
    password: str | None

    def do_GET(self) -> None:
        word = base64.b64encode(f"me:{self.password}".encode()).decode()
        if self.password and self.headers.get("Authorization") != f"Basic {word}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = self.headers.get("Range")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start : start + 1000])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def faltering(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[_Faltering], str]]:
    """The server's class and its address without a scheme; pip has no settings but its own."""
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    attributes: dict[str, Any] = {"content": os.urandom(2500), "ranges": [], "password": None}
    handler = type("Handler", (_Faltering,), attributes)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield handler, f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_interrupted_file_is_gone_on_with(faltering: tuple[type[_Faltering], str], tmp_path: Path) -> None:
    server, address = faltering
    path = tmp_path / "half"
    path.write_bytes(server.content[:300])
    assert list(download([(f"http://{address}/a.whl", path)])) == [0]
    assert path.read_bytes() == server.content
    assert server.ranges == ["bytes=300-", "bytes=1300-", "bytes=2300-"]


def test_pips_password_is_used_and_not_shown(
    faltering: tuple[type[_Faltering], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, address = faltering
    server.password = "secret"
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:secret@{address}/simple")
    assert list(download([(f"http://{address}/simple/files/a.whl", tmp_path / "a")])) == [0]
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:wrong@{address}/simple")
    monkeypatch.setenv("PIP_NO_INPUT", "1")
    with pytest.raises(UserError, match="401") as caught:
        list(download([(f"http://me:wrong@{address}/simple/files/a.whl", tmp_path / "b")]))
    assert "wrong" not in str(caught.value)
