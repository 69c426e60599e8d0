"""Limits in front of the views of Flask.

::

    from flask import Flask
    from stint_client.flask import Stint

    app = Flask(__name__)
    app.config["STINT_URL"] = "http://127.0.0.1:8080"
    stint = Stint(app)
"""

from __future__ import annotations

import time
from typing import Callable, Mapping, Optional

from flask import Flask, Request, Response, g, request

from . import Client, StintError
from . import Response as Answer
from ._web import DEGRADED, OnError, checked, describe
from ._wire import UNAVAILABLE

__all__ = ["Stint"]


class Stint:
    """Take before each request, and answer those that are refused.

    The client is ``client``, or one for STINT_URL and STINT_TOKEN of the configuration. A request has the attributes ip,
    method, path and host, and those that ``attributes`` returns for it. ip is the peer of the connection: use
    werkzeug.middleware.proxy_fix behind a proxy. ``on_error`` says what becomes of a request without a decision: "reject"
    answers 503, "allow" lets it pass.
    """

    def __init__(
        self,
        app: Optional[Flask] = None,
        *,
        client: Optional[Client] = None,
        attributes: Optional[Callable[[Request], Mapping[str, str]]] = None,
        on_error: OnError = "reject",
    ) -> None:
        self._client, self._attributes, self._on_error = client, attributes, checked(on_error)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        client = self._client or Client(app.config["STINT_URL"], app.config.get("STINT_TOKEN"), app.config.get("STINT_TIMEOUT", 10))
        app.extensions["stint"] = client

        def before() -> Optional[Response]:
            attributes = describe(request.remote_addr, request.method, request.path, request.host)
            if self._attributes is not None:
                attributes.update(self._attributes(request))
            try:
                decision = client.take(attributes)
            except StintError:
                return None if self._on_error == "allow" else _response(UNAVAILABLE)
            g.stint_decision = decision
            if not decision:
                return _response(decision.response())
            if decision.permit is not None:
                permit = decision.permit

                def finish() -> None:
                    try:
                        client.finish(attributes, permit)
                    except StintError:
                        pass  # it ends by itself

                g.stint_finish = finish
            if decision.delay > 0:
                time.sleep(decision.delay)
            for name in (DEGRADED, *decision.tags):
                request.environ.pop(_key(name), None)
            request.environ.update({_key(name): value for name, value in decision.tags.items()})
            return None

        def after(response: Response) -> Response:
            decision = g.get("stint_decision")
            if decision:
                for name, value in decision.response().headers.items():
                    response.headers.setdefault(name, value)
            finish: Optional[Callable[[], None]] = g.pop("stint_finish", None)
            if finish is not None:
                response.call_on_close(finish)
            return response

        def teardown(error: Optional[BaseException]) -> None:
            finish: Optional[Callable[[], None]] = g.pop("stint_finish", None)
            if finish is not None:
                finish()

        app.before_request(before)
        app.after_request(after)
        app.teardown_request(teardown)


def _response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, answer.headers)


def _key(name: str) -> str:
    return "HTTP_" + name.upper().replace("-", "_")
