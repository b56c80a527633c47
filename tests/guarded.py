"""Asks a running server for everything it has, as somebody does who does not know the attempt's secret."""

import base64
import contextlib
import http.client
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

HEADER = "X-Rolloutbench-Secret"
# What a server has beside the routes of its schema, or may have in another release.
MORE = ("/docs", "/redoc", "/openapi.json", "/metrics", "/ping", "/version", "/server_info", "/collective_rpc", "/v1/x")
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(b"0" * 16).decode(),
}


def status(url, method, path, headers=(), body=None):
    """The status of an answer, and its text."""
    at = urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(at.hostname, at.port, timeout=60)) as client:
        client.request(method, path, body, {"Content-Type": "application/json", **dict(headers)})
        answer = client.getresponse()
        return answer.status, answer.read().decode(errors="replace")


def routes(url, secret):
    """Method and path of all that the server says it has, and of some that it need not say."""
    code, text = status(url, "GET", "/openapi.json", {HEADER: secret})
    assert code == 200, text
    paths = json.loads(text)["paths"]
    found = [(method.upper(), re.sub(r"{\w+}", "x", path)) for path, methods in paths.items() for method in methods]
    assert len(found) > 10
    doubles = [(method, path) for method in ("GET", "POST", "OPTIONS") for path in ("//health", "/health/x", "/HEALTH")]
    return [*found, *(("GET", path) for path in MORE), ("POST", "/health"), *doubles]


def answered(url, secret):
    """What the server answers to somebody without the secret, or with another, that is no refusal."""
    wrong = [{}, {HEADER: "wrong"}, {HEADER: ""}, {"Authorization": f"Bearer {secret}x"}, {HEADER: secret[:-1]}]
    routes_but_health = [one for one in routes(url, secret) if one != ("GET", "/health")]
    asked = [(method, path, headers) for method, path in routes_but_health for headers in wrong]
    asked += [
        ("GET", path, WEBSOCKET | headers) for path in ("/v1/realtime", "/ws", "/health") for headers in wrong[:2]
    ]
    told = [(*one, status(url, *one, body="{}" if one[0] != "GET" else None)[0]) for one in asked]
    return [one for one in told if one[-1] not in (401, 403)]


def command_lines_with(secret):
    """The processes of this machine whose command line tells the secret."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if secret.encode() in line.read_bytes():
                found.append(line.read_text())
    return found


def files_with(folder, secret):
    """The files under a folder that tell the secret."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
