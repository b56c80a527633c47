"""pip's settings in uv's words, asked from the real pip; PyTorch's own index only where no source has its wheel."""

import os
from pathlib import Path

import pytest

from common.errors import UserError
from workflow.stacks.build import build_from_source
from workflow.stacks.definition import SITE_PACKAGES, load_stack
from workflow.stacks.lockfile import check_lock
from workflow.stacks.uv import Uv, configured_uv, find_uv, torch_arguments

from ..programs import executable
from .conftest import PYTHON, write_wheel

TORCH = "torch==9.9+cpu"
SECRET = "https://me:secret@mirror.invalid/simple"
PIP_CONF = Path(__file__).with_name("pip.conf").read_text(encoding="utf-8")
ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_NO_WRAP": "1", "UV_LINK_MODE": "copy"}
PROXIES = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://p:1")
OF_CONF = (
    ALWAYS
    | PROXIES
    | {
        "UV_DEFAULT_INDEX": SECRET,
        "UV_INDEX": "https://a.invalid https://b.invalid",
        "UV_FIND_LINKS": "/,https://page.invalid/x",
        "UV_INSECURE_HOST": "a b:81",
        "UV_HTTP_TIMEOUT": "7",
        "SSL_CERT_FILE": "/x/ca.pem",
    }
)


@pytest.fixture
def pip_conf(tmp_path, monkeypatch):
    """A pip configuration file that pip reads after every other one, and no variable of a source beside it."""
    for key in os.environ:
        if key.startswith(("PIP_", "UV_", "SSL_")) or key in PROXIES:
            monkeypatch.delenv(key)
    path = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    return path


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        (PIP_CONF, {}, OF_CONF),
        # The environment goes before the files, as in pip; an empty variable does not count.
        (PIP_CONF, {"PIP_FIND_LINKS": "/usr /bin", "PIP_TIMEOUT": ""}, OF_CONF | {"UV_FIND_LINKS": "/usr,/bin"}),
        # The user's own words for uv stay; a certificate and a proxy of pip's are the only ones that it has.
        (PIP_CONF, dict.fromkeys(OF_CONF, "own"), dict.fromkeys(OF_CONF, "own") | PROXIES | {
            "SSL_CERT_FILE": "/x/ca.pem", "UV_FIND_LINKS": "own", "UV_NO_WRAP": "1", "UV_LINK_MODE": "copy",
        }),
    ],
)  # fmt: skip
def test_uv_has_what_pip_has(pip_conf, monkeypatch, text, environ, expected):
    pip_conf.write_text(text)
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    uv = configured_uv()
    assert {key: uv.environ[key] for key in expected} == expected
    assert uv.arguments == ("--no-index",)
    assert "secret" not in uv.sources


def test_a_lock_is_resolved_from_the_main_index_first(pip_conf):
    """And no password is shown."""
    pip_conf.write_text(PIP_CONF.partition("find-links")[0])
    uv = configured_uv(main_index_first=True)
    assert uv.environ["UV_INDEX"] == f"{SECRET} https://a.invalid https://b.invalid"
    hidden = "index https://[hidden]@mirror.invalid/simple"
    assert uv.sources == f"{hidden}, {hidden}, index https://a.invalid, index https://b.invalid"


def test_pips_own_complaint_is_passed_on(pip_conf):
    pip_conf.write_text("[global]\ntimeout = soon\n")
    with pytest.raises(UserError, match=r"invalid floating-point value: 'soon'"):
        configured_uv()


def test_the_folder_of_packages_is_put_into_a_builds_variables(tmp_path):
    name = "verl09-vllm"
    pretended = tmp_path / "uv"
    executable(pretended, f"stat -c %a uv.toml >> {tmp_path}/mode; cat uv.toml >> {tmp_path}/seen")
    (tmp_path / "own.toml").write_text('index-url = "https://me:pw@host/simple"\n')
    work = tmp_path / "work"
    work.mkdir()
    flash_attn = [pin for pin in check_lock(name) if pin.name == "flash-attn"]
    python, own = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    own.mkdir(parents=True)
    environ = {"UV_CONFIG_FILE": str(tmp_path / "own.toml")}
    build_from_source(load_stack(name), flash_attn, python, Uv(str(pretended), environ, ()), work)
    seen = (tmp_path / "seen").read_text(encoding="utf-8")
    assert f'"CPATH" = "{own}/nvidia/cu13/include"' in seen
    assert SITE_PACKAGES not in seen
    assert "me:pw@host" in seen and {*(tmp_path / "mode").read_text().split()} == {"600"}
    assert not (work / "uv.toml").exists(), "the user's passwords stay no longer than the build"


@pytest.fixture
def uv(site, index):
    """The real uv, knowing only the index on loopback."""
    return Uv(find_uv(), {**site.environ, "UV_DEFAULT_INDEX": index.url}, ())


def test_asked_only_when_no_source_has_it(uv, index, tmp_path):
    asked = ["--torch-backend", "cpu"]
    assert torch_arguments(uv, TORCH, "cpu", PYTHON) == asked
    index.add(write_wheel(tmp_path / "wheels", "torch", "9.9"))
    assert torch_arguments(uv, TORCH, "cpu", PYTHON) == asked, "of another build"
    write_wheel(tmp_path / "folder", "torch", "9.9+cpu")
    found = Uv(uv.binary, {**uv.environ, "UV_FIND_LINKS": str(tmp_path / "folder")}, ())
    assert torch_arguments(found, TORCH, "cpu", PYTHON) == []


def test_not_asked_where_the_user_forbids_or_chooses(uv):
    assert torch_arguments(Uv(uv.binary, uv.environ, ("--no-index",)), TORCH, "cpu", PYTHON) == []
    for own in ({"UV_OFFLINE": "1"}, {"UV_TORCH_BACKEND": "cu126"}):
        assert torch_arguments(Uv(uv.binary, {**uv.environ, **own}, ()), TORCH, "cpu", PYTHON) == []


def test_a_build_takes_torch_from_the_configured_source(site, index, tmp_path):
    index.add(write_wheel(tmp_path / "wheels", "torch", "9.9+cpu"))
    site.write_stack(TORCH + "\n", extra="torch_backend: cpu\n")
    assert site.run("lock", "tiny").returncode == 0
    built = site.build()
    assert built.returncode == 0, built.stderr
    assert "and PyTorch" not in built.stderr
