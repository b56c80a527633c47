"""The guard of an engine's server refuses what has no secret, whatever the server's own check believes."""

import asyncio
from urllib.parse import urlsplit

import pytest

from node.engine_server import NONCE, PROOF, proof
from node.guard import SecretGuard

SECRET = "s3cret-of-the-attempt"
BEARER = {"authorization": f"Bearer {SECRET}"}


def asked(method, path, headers, app_status=200):
    """The status and the headers of an answer of an app behind the guard and a check as SGLang 0.4.6 has it."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": app_status, "headers": [(b"x-app", b"1")]})
        await send({"type": "http.response.body", "body": b"REACHED"})

    guard = SecretGuard(app, name="Authorization", value=f"Bearer {SECRET}")

    async def check(scope, receive, send):
        """Its middleware, with the address as Starlette 0.46 puts it together."""
        given = dict(scope["headers"])
        address = urlsplit(f"http://{given[b'host'].decode()}{scope['path']}")
        assert address.path.startswith("/health") or given.get(b"authorization") == BEARER["authorization"].encode()
        await guard(scope, receive, send)

    sent = []

    async def send(message):
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in ({"host": "h:1"} | headers).items()]
    asyncio.run(check({"type": "http", "method": method, "path": path, "headers": raw}, None, send))
    start, body = sent
    assert (body.get("body") == b"REACHED") == (start["status"] != 401)
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}


@pytest.mark.parametrize("host", ["x/health?", "x/health#", "x/health_generate?"])
def test_a_header_that_names_another_path_reaches_nothing(host):
    for method in ("GET", "POST"):
        assert asked(method, "/update_weights_from_tensor", {"host": host})[0] == 401
    assert asked("POST", "/update_weights_from_tensor", BEARER)[0] == 200


def test_health_alone_is_open_and_proves_the_secret_without_telling_it():
    for path in ("/health_generate", "/health/x", "/health/"):
        assert asked("GET", path, {})[0] == 401
    assert asked("POST", "/health", {})[0] == 401
    for status in (200, 503):
        code, headers = asked("GET", "/health", {NONCE: "n1"}, status)
        assert code == status and headers["x-app"] == "1" and SECRET not in str(headers)
        assert headers[PROOF.lower()] == proof(BEARER["authorization"], "n1") != proof(BEARER["authorization"], "n2")
