"""Limits in front of the views of Django, synchronous or asynchronous.

::

    MIDDLEWARE = [..., "django.contrib.auth.middleware.AuthenticationMiddleware", "stint_client.django.StintMiddleware"]
    STINT = {"URL": "http://127.0.0.1:8080", "TIMEOUT": 2, "ATTRIBUTES": "shop.limits.attributes"}
"""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any, Awaitable, Callable, Mapping, Optional, Union, cast

from asgiref.sync import markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from . import AsyncClient, Client, Decision, Response, StintError
from ._web import DEGRADED, checked, describe
from ._wire import UNAVAILABLE

__all__ = ["StintMiddleware"]

Attributes = Callable[[HttpRequest], Mapping[str, str]]


class StintMiddleware:
    """Take before each request, and answer those that are refused.

    The setting STINT has URL, and TOKEN, TIMEOUT, MAX_CONNECTIONS, ATTRIBUTES and ON_ERROR if they are wanted. A request
    has the attributes ip (REMOTE_ADDR), method, path and host, and those that ATTRIBUTES, a function or its path,
    returns for it. ON_ERROR says what becomes of a request without a decision: "reject" answers 503, "allow" lets it pass.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Union[HttpResponseBase, Awaitable[HttpResponseBase]]]) -> None:
        self._get_response = get_response
        options = dict(getattr(settings, "STINT", {}))
        try:
            url, token, timeout = options.pop("URL"), options.pop("TOKEN", None), options.pop("TIMEOUT", 10)
        except KeyError:
            raise ImproperlyConfigured('the setting STINT needs a URL, such as {"URL": "http://127.0.0.1:8080"}') from None
        attributes = options.pop("ATTRIBUTES", None)
        self._attributes: Optional[Attributes] = import_string(attributes) if isinstance(attributes, str) else attributes
        self._on_error, most = checked(options.pop("ON_ERROR", "reject")), options.pop("MAX_CONNECTIONS", 100)
        if options:
            raise ImproperlyConfigured(f"the setting STINT has {', '.join(map(str, options))}, which it does not know")
        self._asynchronous = inspect.iscoroutinefunction(get_response) or asyncio.iscoroutinefunction(get_response)
        if self._asynchronous:
            self._aclient = AsyncClient(url, token, timeout, max_connections=most)
            markcoroutinefunction(self)
        else:
            self._client = Client(url, token, timeout, max_connections=most)

    def __call__(self, request: HttpRequest) -> Union[HttpResponseBase, Awaitable[HttpResponseBase]]:
        if self._asynchronous:
            return self._call(request)
        attributes = self._describe(request)
        try:
            decision = self._client.take(attributes)
        except StintError:
            return cast(HttpResponseBase, self._get_response(request)) if self._on_error == "allow" else _response(UNAVAILABLE)
        if not decision:
            return _response(decision.response())
        if decision.delay > 0:
            time.sleep(decision.delay)
        permit, client = decision.permit, self._client

        def finish() -> None:
            if permit is not None:
                try:
                    client.finish(attributes, permit)
                except StintError:
                    pass  # it ends by itself

        try:
            response = cast(HttpResponseBase, self._get_response(_tagged(request, decision)))
        except BaseException:
            finish()
            raise
        return _answered(response, decision, finish)

    async def _call(self, request: HttpRequest) -> HttpResponseBase:
        attributes = self._describe(request)
        try:
            decision = await self._aclient.take(attributes)
        except StintError:
            return await cast(Awaitable[HttpResponseBase], self._get_response(request)) if self._on_error == "allow" else _response(UNAVAILABLE)
        if not decision:
            return _response(decision.response())
        if decision.delay > 0:
            await asyncio.sleep(decision.delay)
        permit, client, loop = decision.permit, self._aclient, asyncio.get_running_loop()

        def finish() -> None:  # called by a thread of Django's
            if permit is not None:
                asyncio.run_coroutine_threadsafe(client.finish(attributes, permit), loop)

        try:
            response = await cast(Awaitable[HttpResponseBase], self._get_response(_tagged(request, decision)))
        except BaseException:
            finish()
            raise
        return _answered(response, decision, finish)

    def _describe(self, request: HttpRequest) -> dict[str, str]:
        attributes = describe(request.META.get("REMOTE_ADDR"), request.method or "GET", request.path, request.META.get("HTTP_HOST", ""))
        if self._attributes is not None:
            attributes.update(self._attributes(request))
        return attributes


def _response(answer: Response) -> HttpResponse:
    return HttpResponse(answer.body, status=answer.status, headers=answer.headers)


def _tagged(request: HttpRequest, decision: Decision) -> HttpRequest:
    request.META.pop("HTTP_" + DEGRADED.upper().replace("-", "_"), None)
    for name, value in decision.tags.items():
        request.META["HTTP_" + name.upper().replace("-", "_")] = value
    request.__dict__.pop("headers", None)  # a cached property
    return request


def _answered(response: HttpResponseBase, decision: Decision, finish: Callable[[], None]) -> HttpResponseBase:
    for name, value in decision.response().headers.items():
        response.headers.setdefault(name, value)
    if decision.permit is not None:
        close = response.close

        def closed() -> None:
            try:
                close()
            finally:
                finish()

        setattr(response, "close", closed)
    return response
