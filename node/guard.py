"""Refuses all requests to an engine's server that do not have its secret, except GET /health, which proves it.

The engines' own keys do not suffice. vLLM's `--api-key` guards only paths such as /v1 (entrypoints/serve/middleware/
authenticate.py of 0.31), and the routes of its development mode, which the trainers need, replace weights and call any
method of its workers. SGLang 0.4.6 compares a path that Starlette before 1.0 takes from the header Host.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from node.engine_server import HEADER, NONCE, PROOF, SECRET, proof

_Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class SecretGuard:
    """ASGI middleware that answers 401, to a websocket 403, unless a request has the header with the secret.

    Without a value the header is the attempt's.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], name: str = HEADER, value: str | None = None) -> None:
        self._app, self._name = app, name.lower().encode()
        self._value = os.environ[SECRET] if value is None else value

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: _Send) -> None:
        if scope["type"] == "lifespan" or self._has_secret(scope):
            await self._app(scope, receive, send)
        elif (scope["type"], scope.get("method"), scope["path"]) == ("http", "GET", "/health"):
            await self._app(scope, receive, self._proving(scope, send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

    def _has_secret(self, scope: Mapping[str, Any]) -> bool:
        value = self._value.encode()
        return any(name == self._name and hmac.compare_digest(given, value) for name, given in scope["headers"])

    def _proving(self, scope: Mapping[str, Any], send: _Send) -> _Send:
        """`send` with the proof of the request's nonce: only this server has the secret, another may have its port."""
        nonce = dict(scope["headers"]).get(NONCE.lower().encode(), b"")
        header = (PROOF.lower().encode(), proof(self._value, nonce.decode("latin-1")).encode())

        async def send_with_proof(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        return send_with_proof
