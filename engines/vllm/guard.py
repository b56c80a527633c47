"""Refuses all requests to a vLLM server that do not have the attempt's secret, except GET /health.

vLLM's own `--api-key` guards only paths such as /v1 (entrypoints/serve/middleware/authenticate.py of 0.31). The routes
of its development mode, which the trainers need, replace weights and call any method of its workers.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from node.engine_server import HEADER, SECRET

_NAME = HEADER.lower().encode()


class SecretGuard:
    """ASGI middleware that answers 401, to a websocket 403, unless a request has the secret in its header."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app, self._secret = app, os.environ[SECRET].encode()

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Callable[..., Awaitable[None]]) -> None:
        if self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

    def _may_pass(self, scope: Mapping[str, Any]) -> bool:
        if scope["type"] == "lifespan" or (scope.get("method"), scope["path"]) == ("GET", "/health"):
            return True
        return any(name == _NAME and hmac.compare_digest(value, self._secret) for name, value in scope["headers"])
