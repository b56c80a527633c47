"""Asks pip for its own settings, and puts them into words for uv."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError

# pip merges its files, its environment variables and its per-command sections only inside its option parser:
# `pip config list` of pip 26 prints one key once per file without saying which of them wins.
_ASK_PIP = """
import json
from pip._internal.commands import create_command
from pip._internal.models.index import PyPI
options = create_command("install").parse_args([])[0]
names = ["index_url", "extra_index_urls", "find_links", "no_index", "trusted_hosts",
         "cert", "client_cert", "timeout", "retries", "proxy", "keyring_provider"]
print(json.dumps({name: getattr(options, name, None) for name in names} | {"default_index": PyPI.simple_url}))
"""
_PIP_TIMEOUT_S, _PIP_RETRIES = 15, 5  # pip's own defaults: not a setting that anybody made

_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")


def redacted(text: str) -> str:
    """The text with user names and passwords taken out of its addresses."""
    return _CREDENTIALS.sub("***@", text)


def pip_settings(python: str = sys.executable) -> dict[str, Any]:
    """pip's settings as that Python's pip would use them; empty when it has no pip.

    UserError carries pip's own words when pip refuses its settings.
    """
    # -I keeps a folder named `pip` in the working directory out; pip reads PIP_* and its files all the same.
    done = subprocess.run([python, "-I", "-c", _ASK_PIP], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        settings: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return settings
    said = redacted((done.stderr or done.stdout).strip())
    if "No module named 'pip'" in said:
        return {}
    last = said.splitlines()[-1] if said else "no message"
    raise UserError(
        f"pip's settings cannot be read: {last}\nMend them (`{python} -m pip config debug` shows every file)."
    )


def uv_environment(
    settings: Mapping[str, Any], environ: Mapping[str, str] = os.environ, *, main_index_first: bool = False
) -> dict[str, str]:
    """The variables that make uv look where pip would; what the user set for uv (UV_*) stays as it is.

    They are variables and not arguments because addresses may hold passwords, and arguments are public.
    `main_index_first` settles a tie between indexes that have the same version: a mirror in front may hold only
    some of a release's files, which is quick to install from and would leave hashes out of a lock.
    """
    found: dict[str, str] = {}
    extra = [str(url) for url in settings.get("extra_index_urls") or []]
    main = settings.get("index_url")
    if not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & set(environ):
        if main and main != settings.get("default_index"):
            found["UV_DEFAULT_INDEX"] = str(main)
        if main_index_first and main and extra:
            extra = [str(main), *extra]
    if extra and not {"UV_INDEX", "UV_EXTRA_INDEX_URL"} & set(environ):
        found["UV_INDEX"] = " ".join(extra)
    if links := [str(link) for link in settings.get("find_links") or [] if _exists(str(link))]:
        found["UV_FIND_LINKS"] = ",".join(_absolute(link) for link in links)
    if hosts := settings.get("trusted_hosts"):
        found["UV_INSECURE_HOST"] = " ".join(hosts)
    if settings.get("timeout") not in {None, _PIP_TIMEOUT_S}:
        found["UV_HTTP_TIMEOUT"] = str(max(1, round(float(settings["timeout"]))))
    if settings.get("retries") not in {None, _PIP_RETRIES}:
        found["UV_HTTP_RETRIES"] = str(settings["retries"])
    if settings.get("keyring_provider") == "subprocess":
        found["UV_KEYRING_PROVIDER"] = "subprocess"
    # pip takes the best version over all indexes; uv by itself stops at the first index that knows the name.
    found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    found = {key: value for key, value in found.items() if key not in environ}

    if cert := settings.get("cert"):
        found["SSL_CERT_DIR" if Path(cert).is_dir() else "SSL_CERT_FILE"] = str(cert)
    if settings.get("client_cert"):
        found["SSL_CLIENT_CERT"] = str(settings["client_cert"])
    if proxy := settings.get("proxy"):
        found |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), str(proxy))
    return found


def uv_arguments(settings: Mapping[str, Any]) -> list[str]:
    """The one setting of pip's that uv takes as an argument only."""
    return ["--no-index"] if settings.get("no_index") else []


def described(environ: Mapping[str, str], arguments: list[str]) -> str:
    """The configured sources in one line, without credentials."""
    parts = ["no index" if "--no-index" in arguments else ""]
    if "--no-index" not in arguments:
        main = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
        parts = [f"index {main}" if main else "the default index"]
        parts += [f"index {url}" for key in ("UV_INDEX", "UV_EXTRA_INDEX_URL") for url in environ.get(key, "").split()]
    parts += [f"folder or page {link}" for link in environ.get("UV_FIND_LINKS", "").split(",") if link]
    return redacted(", ".join(part for part in parts if part))


def _local(link: str) -> Path | None:
    if "://" not in link:
        return Path(link).expanduser()
    return Path(link.removeprefix("file://")) if link.startswith("file://") else None


def _exists(link: str) -> bool:
    # pip passes over a folder that is not there; uv stops.
    path = _local(link)
    return path is None or path.exists()


def _absolute(link: str) -> str:
    # uv also runs in a stack's folder; pip means the folder in which it was started.
    path = _local(link)
    return link if path is None else str(path.absolute())
