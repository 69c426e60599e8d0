"""Limits in front of an application of ASGI, such as FastAPI, Starlette or Litestar.

::

    from fastapi import FastAPI
    from stint_client import AsyncClient
    from stint_client.asgi import StintMiddleware

    app = FastAPI()
    app.add_middleware(StintMiddleware, client=AsyncClient("http://127.0.0.1:8080", timeout=2))
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Awaitable, Callable, Mapping, MutableMapping, Optional, Union

from . import AsyncClient, Response, StintError
from ._asyncio import settle
from ._web import DEGRADED, OnError, checked, describe
from ._wire import UNAVAILABLE

__all__ = ["StintMiddleware"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Attributes = Callable[[Scope], Union[Mapping[str, str], Awaitable[Mapping[str, str]]]]


class StintMiddleware:
    """Take before each request and WebSocket, and answer those that are refused.

    A request has the attributes ip, method, path and host, and those that ``attributes`` returns for its scope. ip is the
    peer of the connection: let the server replace it behind a proxy (uvicorn --proxy-headers). ``on_error`` says what
    becomes of a request without a decision: "reject" answers 503, "allow" lets it pass.
    """

    def __init__(self, app: App, client: AsyncClient, *, attributes: Optional[Attributes] = None, on_error: OnError = "reject") -> None:
        self._app, self._client, self._attributes, self._on_error = app, client, attributes, checked(on_error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        attributes = await self._describe(scope)
        try:
            decision = await self._client.take(attributes)
        except StintError:
            if self._on_error == "allow":
                await self._app(scope, receive, send)
            else:
                await _answer(scope, receive, send, UNAVAILABLE)
            return
        try:
            response = decision.response()
            if not decision:
                await _answer(scope, receive, send, response)
                return
            if decision.delay > 0:
                await asyncio.sleep(decision.delay)
            mine = _fields(response.headers)

            async def with_fields(message: Message) -> None:
                if message["type"] in ("http.response.start", "websocket.accept"):
                    message = {**message, "headers": [*message.get("headers", ()), *mine]}
                await send(message)

            dropped = {name.lower().encode("latin-1") for name in (DEGRADED, *decision.tags)}
            headers = [(name, value) for name, value in scope["headers"] if name.lower() not in dropped]
            await self._app({**scope, "headers": headers + _fields(decision.tags)}, receive, with_fields)
        finally:
            if decision.permit is not None:
                try:
                    await settle(self._client.finish(attributes, decision.permit))
                except StintError:
                    pass  # it ends by itself

    async def _describe(self, scope: Scope) -> dict[str, str]:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        client = scope.get("client")
        attributes = describe(client[0] if client else None, scope.get("method", "GET"), scope["path"], host)
        if self._attributes is not None:
            more = self._attributes(scope)
            attributes.update(await more if inspect.isawaitable(more) else more)
        return attributes


def _fields(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def _answer(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        kind = "websocket.http.response"
        if kind not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1013, "reason": "try again later"})
            return
    fields = [*_fields(response.headers), (b"content-length", b"%d" % len(response.body))]
    await send({"type": f"{kind}.start", "status": response.status, "headers": fields})
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else response.body})
