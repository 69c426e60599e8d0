"""A thin client of stint's HTTP API, with the standard library alone.

It asks, and does not decide: each call is one request to the service. A refusal is an answer, a
Decision whose ``allowed`` is False; only what is no answer is raised, as a StintError. Leases, by which
a process decides without asking, are not in it.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import select
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, Optional
from urllib.parse import urlencode, urlsplit

__all__ = ["Client", "Decision", "Refused", "Reservation", "Result", "StintError"]


class StintError(Exception):
    """There is no decision. ``status`` is the HTTP status, 0 where no answer came; ``hint`` says what to do."""

    def __init__(self, message: str, status: int = 0, hint: str = "") -> None:
        super().__init__(f"stint: {message}; {hint}" if hint else f"stint: {message}")
        self.status, self.hint = status, hint


class Refused(StintError):
    """Raised only where a refusal cannot be returned: by wait and by with client.reserving(...)."""

    def __init__(self, decision: "Decision", message: str) -> None:
        super().__init__(message, decision.status, "look at its decision, or ask explain why")
        self.decision = decision


def _seconds(ttl: float) -> str:
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise TypeError(f"ttl is {ttl!r}, want seconds as a number, such as 60")
    return f"{ttl}s"


@dataclass(frozen=True)
class Result:
    """How one limit stands. Times are seconds; None: no wait helps. ``raw`` is all that the service said."""

    name: str
    allowed: bool
    quota: int
    remaining: int
    retry_after: Optional[float]
    reset_after: Optional[float]
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Decision:
    """Whether the request may go on.

    ``retry_after`` is in seconds: 0 when it is allowed, None when no wait helps. ``delay`` is for how many
    seconds to hold an allowed request back. ``permit`` is to be given to finish. ``tags`` are header fields
    for the server that serves the request, ``warnings`` the limits that are used beyond their soft threshold.
    When it is refused, ``violated`` names the limits that refuse, and ``reason`` and ``detail`` say why. The
    rest is for your own client: ``status``, ``location`` where a limit redirects, and ``headers``, ``body``
    and ``content_type`` where a limit has an answer of its own; ``body`` is None where it has none.
    """

    allowed: bool
    results: tuple[Result, ...] = ()
    retry_after: Optional[float] = 0.0
    delay: float = 0.0
    permit: Optional[int] = None
    tags: Mapping[str, str] = field(default_factory=dict)
    violated: tuple[str, ...] = ()
    reason: str = ""
    detail: str = ""
    status: int = 200
    location: str = ""
    warnings: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Optional[str] = None
    content_type: str = ""

    def __bool__(self) -> bool:
        return self.allowed


@dataclass
class Reservation:
    """What was reserved of limits, or the refusal.

    In a with statement that ends without a commit, also by an exception, what renew has reported last is
    committed; without a renew all comes back.
    """

    client: "Client" = field(repr=False)
    decision: Decision
    id: str = ""
    reserved: int = 0
    ends: str = ""
    state: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    used: int = 0

    def __bool__(self) -> bool:
        return self.decision.allowed

    def renew(self, used: int, ttl: Optional[float] = None) -> "Reservation":
        """Say what was used so far; it lives on for ttl seconds, or as long as before."""
        self.used = max(self.used, used)  # also where the call fails: it was used
        body = {"id": self.id, "used": used}
        return self._settle("/v1/renew", body if ttl is None else {**body, "ttl": _seconds(ttl)})

    def commit(self, actual: int) -> "Reservation":
        """Say what was used. The rest comes back; what is over is charged. Again with the same number is harmless."""
        return self._settle("/v1/commit", {"id": self.id, "actual": actual})

    def release(self) -> "Reservation":
        """Give all back."""
        return self._settle("/v1/release", {"id": self.id})

    def _settle(self, path: str, body: Mapping[str, Any]) -> "Reservation":
        if not self.id:
            raise Refused(self.decision, "the reservation was refused, so there is nothing to settle")
        return self._read(self.client._call("POST", path, body)[1])

    def _read(self, raw: Mapping[str, Any]) -> "Reservation":
        self.raw, self.id, self.reserved = raw, raw["id"], raw["reserved"]
        self.ends, self.state = raw["ends"], raw["state"]
        return self

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.state == "open":
            try:
                self.commit(self.used) if self.used else self.release()
            except StintError:
                if kind is None:
                    raise  # else the error of the block is the one to see; the reservation ends by itself


class Client:
    """A client of one service. It is safe for use by several threads, and by processes that fork.

    ``base_url`` is such as http://127.0.0.1:8080, ``token`` that of an identity with the role take,
    ``timeout`` how many seconds the service may take to answer; the time for which wait is held in line comes
    on top. ``context`` is for TLS: a CA of your own, or a client certificate.

    A connection serves one call at a time and belongs to the process that made it. One whose call did not
    end with a whole answer is closed. A call is sent again only where the service cannot have read all of it.
    """

    def __init__(self, base_url: str, token: Optional[str] = None, timeout: float = 10.0, context: Optional[ssl.SSLContext] = None) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise ValueError(f"base_url is {base_url!r}, want one such as http://127.0.0.1:8080")
        self._https, self._host, self._port = url.scheme == "https", url.hostname, url.port
        self._prefix, self._timeout, self._context = url.path.rstrip("/"), timeout, context
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        # Without a lock, which a fork could copy while another thread holds it: append and pop are atomic.
        self._idle: deque[tuple[int, http.client.HTTPConnection]] = deque()

    def take(self, attributes: Mapping[str, str], cost: int = 1, *, count_refused: bool = False) -> Decision:
        """Take cost from every limit that the request meets, or from none. A cost of 0 only looks.

        A limit with on_exceed: queue holds the answer back for half of the timeout at most, and 5 s.
        """
        body: dict[str, Any] = {"attributes": dict(attributes), "cost": cost}
        if count_refused:
            body["count_refused"] = True
        return self._decide("/v1/take", body, min(_HOLD, self._timeout / 2))[0]

    def wait(
        self, attributes: Mapping[str, str], cost: int = 1, *, timeout: Optional[float] = None, sleep: Callable[[float], None] = time.sleep
    ) -> Decision:
        """Take, and wait for the turn: in line at the service for up to 5 s, else by sleep.

        Those who wait at one service for the same bucket are served in the order in which they came. A turn
        that is further away, or at a limit for which there is no line, is waited for by sleeping for
        retry_after and asking again. Raises Refused at once where no wait helps, or where it would be longer
        than what is left of timeout.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        refused = 0
        while True:
            # Newcomers join shorter lines only, so that nobody who was refused finds every line full.
            hold = max(0, min(_HOLD if refused else _HOLD / 2, end - time.monotonic()))
            d = self._decide("/v1/take", {"attributes": dict(attributes), "cost": cost, "queue": True}, hold, self._timeout + hold)[0]
            if d.allowed:
                if d.delay > 0:
                    sleep(d.delay)
                return d
            pause = d.retry_after
            if pause is None:
                raise Refused(d, f"refused, and no wait helps: {d.detail}")
            if time.monotonic() + pause > end:
                raise Refused(d, f"refused, and the wait of {pause} s is longer than the timeout: {d.detail}")
            if refused:  # others ask at the same moment
                pause += random.uniform(0, min(pause / 10, 0.1))
            sleep(max(pause, 0.001))
            refused += 1

    def finish(self, attributes: Mapping[str, str], permit: int) -> None:
        """Give back the permit of a request in flight, with the attributes of its take."""
        self._call("POST", "/v1/finish", {"attributes": dict(attributes), "permit": permit})

    def explain(self, attributes: Mapping[str, str], cost: int = 1) -> dict[str, Any]:
        """Say which limits the request meets, why, and how full they are. Takes nothing."""
        return self._call("POST", "/v1/explain", {"attributes": dict(attributes), "cost": cost})[1]

    def reserve(
        self, attributes: Mapping[str, str], cost: Optional[int] = None, *,
        ttl: Optional[float] = None, declared: Optional[int] = None, charge_expired: bool = False,
    ) -> Reservation:
        """Take an estimate before the cost is known. Without cost the service estimates it where it is told how.

        A refusal is a Reservation whose decision says so. ttl is 1 to 3600 seconds, 60 by default.
        """
        body: dict[str, Any] = {"attributes": dict(attributes)}
        for name, value in (("cost", cost), ("declared", declared), ("ttl", None if ttl is None else _seconds(ttl))):
            if value is not None:
                body[name] = value
        if charge_expired:
            body["charge_expired"] = True
        decision, raw = self._decide("/v1/reserve", body)
        reservation = Reservation(self, decision)
        return reservation._read(raw) if decision.allowed else reservation

    def reserving(self, attributes: Mapping[str, str], cost: Optional[int] = None, **options: Any) -> Reservation:
        """Reserve for a with statement: raises Refused where reserve returns a refusal.

        What renew has reported last is committed at its end, or what commit says; else all comes back.
        """
        r = self.reserve(attributes, cost, **options)
        if not r:
            raise Refused(r.decision, f"refused: {r.decision.detail}")
        return r

    def usage(self, **query: Any) -> list[dict[str, Any]]:
        """Rows of what was used: customer, key, limit, from_, to, by (hour, day, month, total), timezone."""
        query = {name.rstrip("_"): value for name, value in query.items()}
        return self._call("GET", "/v1/usage?" + urlencode(query, doseq=True), None)[1]["usage"]

    def close(self) -> None:
        """Close the connections that no call uses. The next call opens another one."""
        while self._idle:
            try:
                self._idle.pop()[1].close()
            except IndexError:
                return  # another thread was faster

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _decide(self, path: str, body: Mapping[str, Any], hold: float = 0, timeout: float = 0) -> tuple[Decision, dict[str, Any]]:
        status, raw, headers = self._call("POST", path, body, {"Prefer": f"wait={hold:.3f}"}, timeout)
        results = tuple(_result(r) for r in raw.get("limits", ()))
        warnings = tuple(r.name for r in results if r.raw.get("soft") and not r.raw.get("shadow"))
        if "violated-policies" not in raw:
            if raw.get("allowed") is not True and "id" not in raw:
                raise StintError(f"POST {path} was answered with {status} without a decision", status, "is base_url that of stint serve?")
            return Decision(
                allowed=True,
                results=results,
                delay=raw.get("delay", 0.0),
                permit=raw.get("permit"),
                tags=_pairs(raw.get("tags", ())),
                warnings=warnings,
            ), raw
        action = raw.get("action", {})
        return Decision(
            allowed=False,
            results=results,
            retry_after=raw.get("retry_after"),
            violated=tuple(raw["violated-policies"]),
            reason=raw.get("reason", ""),
            detail=raw.get("detail", ""),
            status=int(headers.get("X-Stint-Status", status)),
            location=headers.get("X-Stint-Location", ""),
            warnings=warnings,
            headers=_pairs(action.get("header", ())),
            body=action.get("body"),
            content_type=action.get("content_type", ""),
        ), raw

    def _call(
        self, method: str, path: str, body: Optional[Mapping[str, Any]], headers: Mapping[str, str] = {}, timeout: float = 0
    ) -> tuple[int, dict[str, Any], Any]:
        payload = None if body is None else json.dumps(body).encode()
        while True:
            kept = self._kept()
            connection = kept or self._connect()
            sock, whole = connection.sock, False
            try:
                if kept is None:
                    connection.connect()
                    sock = connection.sock
                sock.settimeout(timeout or self._timeout)
                try:
                    connection.request(method, self._prefix + path, payload, {**self._headers, **headers})
                except ConnectionError:
                    if kept is None:
                        raise
                    continue  # the connection took less than the whole request, so it was not decided
                response = connection.getresponse()
                text = response.read()
                whole = not response.will_close
                break
            except (OSError, http.client.HTTPException) as err:
                raise self._unreachable(err) from err
            finally:
                # Also where a signal handler or a greenlet's timeout ends the call by an exception of its own.
                if whole and len(self._idle) < _MOST_IDLE:
                    self._idle.append((os.getpid(), connection))
                else:
                    connection.close()
                    _drop(sock)
        try:
            raw = json.loads(text) if text else {}
        except ValueError:
            raw = None
        known = isinstance(raw, dict)
        if known and (response.status < 300 or "violated-policies" in raw):
            return response.status, raw, response.headers
        detail = (known and raw.get("detail")) or "no text of stint"
        hint = _HINTS.get(response.status, "see docs/reference/http-api.md")
        raise StintError(f"{method} {path} was answered with {response.status}: {detail}", response.status, hint)

    def _kept(self) -> Optional[http.client.HTTPConnection]:
        """The connection used last that still stands, or None. Those of the parent process are dropped."""
        while True:
            try:
                process, connection = self._idle.pop()
            except IndexError:
                return None
            if process == os.getpid() and not _ended(connection.sock):
                return connection
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._https:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _unreachable(self, err: Exception) -> StintError:
        hint = f"is stint serve running at {self._host}:{self._port}, and is timeout ({self._timeout} s) long enough?"
        return StintError(f"no answer: {err or type(err).__name__}", 0, hint)


def _result(r: Mapping[str, Any]) -> Result:
    return Result(r["name"], r["allowed"], r["quota"], r["remaining"], r["retry_after"], r["reset_after"], r)


def _pairs(pairs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {p["name"]: p["value"] for p in pairs}


def _ended(sock: socket.socket) -> bool:
    """Whether an idle connection has something to read, which is its end."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


def _drop(sock: Optional[socket.socket]) -> None:
    """End a connection at once, whatever still refers to it: the service then gives up a call that it holds in line."""
    if sock is None:
        return
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended
    file = sock.detach()
    if file >= 0:
        socket.close(file)


_HOLD = 5  # seconds for which the service holds an answer back
_MOST_IDLE = 16

_HINTS = {
    400: "the request has a fault, do not repeat it as it is",
    401: "give Client a token of an identity in the file of --auth",
    403: "the identity of the token needs the role take",
    404: "is base_url the HTTP port of stint serve, and the id of a reservation right?",
    409: "an earlier call said something else: keep what it said",
    421: "use an IP address, or allow the name with --http-host",
    503: "ask again, and decide meanwhile whether requests go on without a decision",
}
