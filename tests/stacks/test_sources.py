"""pip's settings in uv's words, asked from the real pip."""

import os

import pytest

from common.errors import UserError
from common.redaction import without_secrets
from workflow.stacks.build import build_from_source
from workflow.stacks.definition import SITE_PACKAGES, load_stack
from workflow.stacks.lockfile import check_lock
from workflow.stacks.uv import Uv, configured_uv, pip_settings, uv_environment

from ..programs import executable

DEFAULTS = {
    "index_url": "https://main.invalid/simple",
    "default_index": "https://main.invalid/simple",
    "timeout": 15,
    "retries": 5,
}
ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
SECRET = "https://me:secret@mirror.invalid/simple"


@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        ({}, {}, {}),
        ({"index_url": SECRET}, {}, {"UV_DEFAULT_INDEX": SECRET}),
        ({"index_url": SECRET}, {"UV_DEFAULT_INDEX": "https://own.invalid"}, {}),
        (
            {"extra_index_urls": ["https://a.invalid", "https://b.invalid"]},
            {},
            {"UV_INDEX": "https://a.invalid https://b.invalid"},
        ),
        (
            {"find_links": ["/", "https://page.invalid/x", "/not/there"]},
            {},
            {"UV_FIND_LINKS": "/,https://page.invalid/x"},
        ),
        ({"trusted_hosts": ["a", "b:81"]}, {}, {"UV_INSECURE_HOST": "a b:81"}),
        ({"timeout": 180.0}, {}, {"UV_HTTP_TIMEOUT": "180"}),
        ({"cert": "/x/ca.pem"}, {"SSL_CERT_FILE": "/other"}, {"SSL_CERT_FILE": "/x/ca.pem"}),
        (
            {"proxy": "http://p:1"},
            {"https_proxy": "http://old:1"},
            dict.fromkeys(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"], "http://p:1"),
        ),
    ],
)
def test_each_setting_has_its_word(settings, environ, expected):
    assert uv_environment(DEFAULTS | settings, environ) == ALWAYS | expected


def test_a_lock_is_resolved_from_the_main_index_first():
    settings = DEFAULTS | {"extra_index_urls": ["https://part.invalid"]}
    first = uv_environment(settings, {}, main_index_first=True)
    assert first["UV_INDEX"] == "https://main.invalid/simple https://part.invalid"


def test_the_users_index_strategy_stays():
    assert uv_environment(DEFAULTS, {"UV_INDEX_STRATEGY": "first-index"}) == {}


def test_no_index_is_an_argument(monkeypatch):
    for value, arguments in (("1", ("--no-index",)), ("0", ())):
        monkeypatch.setenv("PIP_NO_INDEX", value)
        assert configured_uv().arguments == arguments


def test_passwords_are_not_shown():
    environ = uv_environment(DEFAULTS | {"index_url": SECRET, "extra_index_urls": [SECRET]}, {})
    assert (
        Uv("uv", environ, ()).sources
        == "index https://[hidden]@mirror.invalid/simple, index https://[hidden]@mirror.invalid/simple"
    )
    assert without_secrets("see http://token@h/ and file:///x") == "see http://[hidden]@h/ and file:///x"
    assert "secret" not in without_secrets("https://me:p@secret@host/simple")


@pytest.fixture
def pip_conf(tmp_path, monkeypatch):
    """A pip configuration file that pip reads after every other one, and no PIP_* variable beside it."""
    for key in [key for key in os.environ if key.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(key)
    path = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    return path


def test_pip_itself_is_asked(pip_conf, monkeypatch):
    pip_conf.write_text(
        f"[global]\nindex-url = {SECRET}\ntimeout = 7\nfind-links =\n    /one\n    /two\ntrusted-host = a b\n"
        "extra-index-url = https://a.invalid https://b.invalid\n[install]\nno-index = yes\n"
    )
    settings = pip_settings()
    assert settings["index_url"] == SECRET
    assert settings["find_links"] == ["/one", "/two"]
    assert settings["extra_index_urls"] == ["https://a.invalid", "https://b.invalid"]
    assert settings["trusted_hosts"] == ["a", "b"]
    assert settings["timeout"] == 7
    assert configured_uv().arguments == ("--no-index",)
    # The environment goes before the files, as in pip; an empty variable does not count.
    monkeypatch.setenv("PIP_FIND_LINKS", "/three /four")
    monkeypatch.setenv("PIP_TIMEOUT", "")
    assert pip_settings()["find_links"] == ["/three", "/four"]
    assert pip_settings()["timeout"] == 7


def test_pips_own_complaint_is_passed_on(pip_conf):
    pip_conf.write_text("[global]\ntimeout = soon\n")
    with pytest.raises(UserError, match=r"invalid floating-point value: 'soon'"):
        pip_settings()


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
