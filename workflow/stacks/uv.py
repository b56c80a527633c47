"""Reads pip's settings, runs uv with them, and explains uv's failures."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.redaction import without_secrets

# Only pip's option parser merges its files, environment variables and per-command sections: `pip config list` of
# pip 26 prints a key once per file, and not which one wins. This parser has the options of `pip install` that matter
# here; with all of them pip loads its installer, which doubles the CPU time.
_ASK_PIP = """
import json
from pip._internal.cli import cmdoptions
from pip._internal.cli.parser import ConfigOptionParser
from pip._internal.models.index import PyPI
parser = ConfigOptionParser(name="install", add_help_option=False)
for group in (cmdoptions.general_group, cmdoptions.index_group):
    parser.add_option_group(cmdoptions.make_option_group(group, parser))
options = parser.parse_args([])[0]
names = ["index_url", "extra_index_urls", "find_links", "no_index", "trusted_hosts",
         "cert", "client_cert", "timeout", "retries", "proxy", "keyring_provider"]
print(json.dumps({name: getattr(options, name, None) for name in names} | {"default_index": PyPI.simple_url}))
"""
_PIP_TIMEOUT_S, _PIP_RETRIES = 15, 5  # pip's defaults, which are no user's setting

_QUIET = re.compile(
    r"^ [+~-] |^Using Python |^Using CPython|^Creating virtual|^Activate with|^$"
    r"|^(?:Resolved|Prepared|Installed|Uninstalled|Audited|Built|Downloading) |^ +(?:Built|Building|Downloaded) "
)
# Shows only the few downloads that take minutes.
_LARGE = re.compile(r"^Downloading .*\((?:[1-9][0-9]{2,}(?:\.[0-9]+)?MiB|[0-9.]+GiB)\)$")
_MOST_DOWNLOADS = 4
NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|os error (28|122)\b")
_NO_HASH = re.compile(r"Hash mismatch for `([^`]+)`")
_NO_FOLDER = re.compile(r"Failed to read `--find-links`[^\n]*")
_UNREACHABLE = re.compile(
    r"Failed to fetch|client error|dns error|timed out|[Cc]ould not connect|connectivity is disabled"
)
_NO_START = re.compile(r"Failed to inspect Python interpreter[^\n`]*`([^`]+)`")
_ADDRESS = re.compile(r"(?:https?|file)://[^\s`)]+")
_NOT_THERE = re.compile(r"(?:Because )?([\w.+=-]+ (?:was not found|has no usable wheels)|there is no version of [^ ]+)")

HOW_TO_SET_SOURCES = (
    "Sources are pip's own settings (see them with `python -m pip config debug`): index-url, extra-index-url and "
    "find-links in pip.conf, or PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS; UV_* variables go before them."
)


def pip_settings() -> dict[str, Any]:
    """The settings that this Python's pip uses; empty without pip. UserError quotes pip if it rejects its settings."""
    # -I ignores a folder named `pip` in the working directory; pip still reads PIP_* and its files.
    done = subprocess.run([sys.executable, "-I", "-c", _ASK_PIP], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        settings: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return settings
    output = without_secrets((done.stderr or done.stdout).strip())
    if "No module named 'pip'" in output:
        return {}
    last = output.splitlines()[-1] if output else "no message"
    raise UserError(
        f"pip's settings cannot be read: {last}\nTo correct them, see `{sys.executable} -m pip config debug`."
    )


def uv_environment(
    settings: Mapping[str, Any], environ: Mapping[str, str] = os.environ, *, main_index_first: bool = False
) -> dict[str, str]:
    """The variables that make uv use pip's sources; the user's own UV_* variables win.

    They are variables, not arguments: addresses may contain passwords, and other users can read arguments.
    `main_index_first` prefers the main index where several indexes have the same version. A mirror may have only some
    of a release's files: that suffices to install, but a lock would lack hashes.
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
    if links := [link for one in settings.get("find_links") or [] if (link := _link(str(one)))]:
        found["UV_FIND_LINKS"] = ",".join(links)
    if hosts := settings.get("trusted_hosts"):
        found["UV_INSECURE_HOST"] = " ".join(hosts)
    if settings.get("timeout") not in {None, _PIP_TIMEOUT_S}:
        found["UV_HTTP_TIMEOUT"] = str(max(1, round(float(settings["timeout"]))))
    if settings.get("retries") not in {None, _PIP_RETRIES}:
        found["UV_HTTP_RETRIES"] = str(settings["retries"])
    if settings.get("keyring_provider") == "subprocess":
        found["UV_KEYRING_PROVIDER"] = "subprocess"
    # pip takes the best version of all indexes; uv's default stops at the first index that has the package.
    found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    found = {key: value for key, value in found.items() if key not in environ}

    if cert := settings.get("cert"):
        found["SSL_CERT_DIR" if Path(cert).is_dir() else "SSL_CERT_FILE"] = str(cert)
    if settings.get("client_cert"):
        found["SSL_CLIENT_CERT"] = str(settings["client_cert"])
    if proxy := settings.get("proxy"):
        found |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), str(proxy))
    return found


def _link(link: str) -> str | None:
    """A link in uv's form; None for a missing folder, which pip ignores and uv rejects."""
    if "://" in link and not link.startswith("file://"):
        return link
    path = Path(link.removeprefix("file://")) if "://" in link else Path(link).expanduser()
    # pip's relative paths start at the working directory; uv also runs in other folders.
    return str(path.absolute()) if path.exists() else None


@dataclass(frozen=True)
class Uv:
    """uv with pip's sources."""

    binary: str
    environ: dict[str, str]
    arguments: tuple[str, ...]
    fds: tuple[int, ...] = ()
    """Our file locks, which the programs hold too."""

    @property
    def sources(self) -> str:
        """The configured sources in one line, without credentials."""
        if "--no-index" in self.arguments:
            parts = ["no index"]
        else:
            main = self.environ.get("UV_DEFAULT_INDEX") or self.environ.get("UV_INDEX_URL")
            extra = [url for key in ("UV_INDEX", "UV_EXTRA_INDEX_URL") for url in self.environ.get(key, "").split()]
            parts = [f"index {main}" if main else "the default index", *(f"index {url}" for url in extra)]
        parts += [f"folder or page {link}" for link in self.environ.get("UV_FIND_LINKS", "").split(",") if link]
        return without_secrets(", ".join(parts))

    def run(self, command: list[str], **options: Any) -> tuple[int, str]:
        """Runs `uv <command>`; exit status and stderr. The options are those of `run`."""
        return run([self.binary, *command], self.environ, fds=self.fds, **options)


def run(
    command: list[str],
    environ: Mapping[str, str],
    *,
    cwd: Path | None = None,
    stdin: str | None = None,
    fds: tuple[int, ...] = (),
    show: bool = False,
) -> tuple[int, str]:
    """Runs a program; exit status and stderr without passwords. `show` copies uv's progress to our stderr.

    The program inherits `fds`: it keeps our file locks until it ends, even if this program is killed.
    """
    process = subprocess.Popen(
        command,
        env=dict(environ),
        cwd=cwd,
        text=True,
        errors="replace",
        pass_fds=fds,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    lines: list[str] = []
    downloads = 0
    try:
        if stdin is not None and process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
        for line in process.stderr:
            lines.append(without_secrets(line))
            # `uv_error` reports uv's error and all that follows.
            show = show and not line.startswith("error:")
            downloads += bool(large := _LARGE.match(line.rstrip()))
            if show and (downloads <= _MOST_DOWNLOADS if large else not _QUIET.match(line)):
                sys.stderr.write("  " + lines[-1])
        return process.wait(), "".join(lines)
    finally:
        # After an interruption: the program must not write while its folder is removed.
        if process.poll() is None:
            process.terminate()
            process.wait()
        process.stderr.close()


def end_of_output(output: str, count: int = 12) -> str:
    """The last lines of a program's output, indented for a message."""
    return "\n".join(f"  {line}" for line in output.strip().splitlines()[-count:])


def configured_uv(*, main_index_first: bool = False) -> Uv:
    """uv with the sources that pip uses."""
    settings = pip_settings()
    translated = uv_environment(settings, main_index_first=main_index_first)
    # If COLUMNS is set, uv wraps its messages, and the patterns above would not match. Copies (reflinks where the disk
    # has them): an edit of a hard link would be in the cache, and with it in every environment.
    environ = {**os.environ, **translated, "UV_NO_WRAP": "1", "UV_LINK_MODE": "copy"}
    # uv accepts this setting only as an argument.
    return Uv(find_uv(), environ, ("--no-index",) if settings.get("no_index") else ())


def find_uv() -> str:
    """The uv in this Python's folder, else the first on PATH; UserError without any."""
    own = Path(sys.executable).parent / "uv"
    found = str(own) if os.access(own, os.X_OK) else shutil.which("uv")
    if found is None:
        raise UserError(
            "uv is not installed; it is among envs/controller/requirements.lock: "
            f"`{sys.executable} -m pip install --require-hashes -r envs/controller/requirements.lock`"
        )
    return found


def torch_arguments(uv: Uv, requirement: str | None, backend: str | None, python: str) -> list[str]:
    """The arguments that make uv use PyTorch's own index; empty if a configured source has this torch.

    `requirement` is the exact pin, such as `torch==2.13.0+cpu`; None for an environment without torch.
    """
    # The user's settings may disable all indexes, or choose PyTorch's index.
    chosen = "--no-index" in uv.arguments or {"UV_OFFLINE", "UV_TORCH_BACKEND"} & set(uv.environ)
    if requirement is None or backend is None or chosen:
        return []
    probe = ["pip", "compile", "-", "--no-deps", "--no-build", "--no-header", "--python-version", python]
    status, output = uv.run([*probe, *uv.arguments], stdin=requirement + "\n")
    if status == 0:
        return []
    if _NOT_THERE.search(output):
        return ["--torch-backend", backend]
    raise uv_error(output, f"looking for {requirement}", uv)


def uv_error(output: str, doing: str, uv: Uv) -> UserError:
    """The error for a failure of uv: its cause, the remedy, and the end of uv's output."""
    if bad := _NO_HASH.search(output):
        what = (
            f"{bad[1]} is not the file that the lock names: its hash differs. Either the source serves another "
            "build of that version, or the file was changed; find out which before you use it.\n"
            f"Sources: {uv.sources}."
        )
    elif NO_SPACE.search(output):
        what = (
            "the disk is full (or your quota is). uv needs space for its cache (UV_CACHE_DIR), for temporary files "
            "(TMPDIR) and for the environment itself."
        )
    elif _NO_FOLDER.search(output) or _UNREACHABLE.search(output):
        asked = _ADDRESS.search(output)
        what = (
            f"a package source could not be read: {asked[0] if asked else uv.sources}.\n{HOW_TO_SET_SOURCES} "
            "Behind a proxy: PIP_PROXY or HTTPS_PROXY."
        )
        if "pytorch" in output:
            what += (
                "\nPyTorch's own index was asked, because no configured source has the torch wheel; you can also name "
                "a folder that has it in PIP_FIND_LINKS."
            )
    elif missing := _NOT_THERE.search(output):
        what = f"no configured source has it: {missing[1]}.\nSources: {uv.sources}.\n{HOW_TO_SET_SOURCES}"
    elif broken := _NO_START.search(output):
        what = (
            f"{broken[1]} is on PATH and does not start. pyenv has a shim for each of its releases, and only the "
            "chosen ones start: choose this one (`pyenv shell <release>`), or install Python (your system's package, "
            "a module, or `uv python install <release>`)."
        )
    else:
        what = "uv failed."
    return UserError(f"{doing}: {what}\nuv said:\n{end_of_output(output)}")
