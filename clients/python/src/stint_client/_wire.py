"""What both clients share: the bytes of requests and answers, and what they mean. It neither sends nor waits."""

from __future__ import annotations

import inspect
import json
import math
import random
import re
import time
from dataclasses import dataclass, field
from typing import Any, Generator, Iterable, Mapping, NamedTuple, Optional, Sequence, Union
from urllib.parse import unquote, urlencode, urlsplit

HOLD = 5.0  # seconds for which the service holds an answer back
MAX_HEAD = 64 << 10  # bytes of the head of an answer

HINTS = {
    400: "the request has a fault, do not repeat it as it is",
    401: "give the client a token of an identity in the file of --auth",
    403: "the identity of the token needs the role take",
    404: "is base_url the HTTP port of stint serve, and the id of a reservation right?",
    409: "an earlier call said something else: keep what it said",
    421: "use an IP address, or allow the name with --http-host",
    503: "ask again, and decide meanwhile whether requests go on without a decision",
}


class StintError(Exception):
    """There is no decision. ``status`` is the HTTP status, 0 where no answer came; ``hint`` says what to do."""

    def __init__(self, message: str, status: int = 0, hint: str = "") -> None:
        super().__init__(f"stint: {message}; {hint}" if hint else f"stint: {message}")
        self.status, self.hint = status, hint


class Refused(StintError):
    """Raised only where a refusal cannot be returned: by wait and reserving."""

    def __init__(self, decision: "Decision", message: str) -> None:
        super().__init__(message, decision.status, "look at its decision, or ask explain why")
        self.decision = decision


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
    When it is refused, ``violated`` names the limits that refuse, and ``reason`` and ``detail`` say why.
    ``repeated`` says that a take with the same idempotency key was charged before, and this one was charged nothing. The
    rest is for your own client: ``response`` has all of it, and its parts are ``status``, ``location`` where a
    limit redirects, and ``headers``, ``body`` and ``content_type`` where a limit has an answer of its own;
    ``body`` is None where it has none.
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
    repeated: bool = False
    _reply: Optional["Reply"] = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.allowed

    def response(self) -> "Response":
        """What to answer your own client: the status, header fields such as RateLimit and Retry-After, and the body of a refusal."""
        fields: dict[str, str] = {}
        for name, value in self._reply.fields() if self._reply else ():
            if name.lower().startswith(("ratelimit", "x-ratelimit-")) or name.lower() == "retry-after":
                fields[name] = value
        if self.allowed:
            return Response(self.status, fields, b"")
        fields.update(self.headers)
        if self.location:
            fields["Location"] = self.location
        if self.body is not None:
            kind, body = self.content_type, self.body.encode()
        else:
            problem = json.loads(self._reply.body) if self._reply else {"status": self.status, "detail": self.detail}
            kind = "application/problem+json"
            body = _encode({k: v for k, v in problem.items() if k not in ("limits", "action")})
        fields.update({"Content-Type": kind, "Cache-Control": "no-store"})
        return Response(self.status, fields, body)


class UsageRows(list[dict[str, Any]]):
    """Rows of what was used. ``incomplete`` names the members of the cluster whose usage is missing in them."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(answer["usage"])
        self.incomplete: list[str] = answer.get("incomplete", [])


class Response(NamedTuple):
    """An answer to your own client."""

    status: int
    headers: dict[str, str]
    body: bytes


# A refusal for want of a decision.
UNAVAILABLE = Response(
    503,
    {"Content-Type": "application/problem+json", "Cache-Control": "no-store", "Retry-After": "1"},
    b'{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",'
    b'"title":"Temporary reduced capacity","status":503,"detail":"the rate limiter could not decide"}\n',
)


class Call(NamedTuple):
    """One request: its path, its body, for how long the answer may be held back, None where it is not, how long it may take,
    and its idempotency key, "" where it has none."""

    method: str
    path: str
    body: bytes
    hold: Optional[float]
    timeout: float
    key: str = ""

    def pause(self, broken: int, left: float) -> Optional[float]:
        """Return how long to pause before the call is sent again, or None if it must not be: it has no key or no time is left.

        broken is how often its connection broke, left the rest of its timeout.
        """
        pause = 0.0 if broken == 1 else random.uniform(0.5, 1) * min(1.0, 0.01 * 2 ** min(broken, 7))
        return pause if self.key and pause < left else None


class Reply(NamedTuple):
    """One answer. ``kept`` says whether its connection can be used again."""

    status: int
    head: bytes
    body: bytes
    kept: bool

    def fields(self) -> Iterable[tuple[str, str]]:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            yield name, value.strip()

    def get(self, name: str) -> str:
        for known, value in self.fields():
            if known.lower() == name:
                return value
        return ""


class Broken(Exception):
    """The answer is not HTTP."""


class Parser:
    """Reads one answer from what a connection receives."""

    __slots__ = ("_buffer", "_head", "_status", "_missing", "_keep", "_body")

    def __init__(self) -> None:
        self._buffer: Union[bytes, bytearray] = b""
        self._head = b""
        self._status = 0
        self._missing: Optional[int] = None  # bytes of the body that are to come; -1: chunks; None: up to the end
        self._keep = True
        self._body = bytearray()  # of chunks

    def feed(self, data: bytes) -> Optional[Reply]:
        """Take what was received, and return the answer once it is whole. No data is the end of the connection."""
        if not data:
            if self._head and self._missing is None:
                return Reply(self._status, self._head, bytes(self._buffer), False)
            raise ConnectionError("the connection ended within the answer" if self._head or self._buffer else "the connection ended without an answer")
        if not self._head:
            if not self._read_head(bytes(self._buffer) + data):
                return None
        else:
            self._buffer += data
        missing = self._missing
        if missing is None:
            return None
        if missing < 0:
            return self._chunks()
        if len(self._buffer) < missing:
            return None
        body = self._buffer if len(self._buffer) == missing else self._buffer[:missing]
        return Reply(self._status, self._head, bytes(body), self._keep and len(self._buffer) == missing)

    def _read_head(self, data: bytes) -> bool:
        while True:
            head, end, rest = data.partition(b"\r\n\r\n")
            if not end or len(head) > MAX_HEAD:
                if len(data) > MAX_HEAD or not data.startswith(b"HTTP/1."[: len(data)]):
                    raise Broken("the answer is not one of HTTP/1.1")
                self._buffer = data
                return False
            if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
                raise Broken("the answer is not one of HTTP/1.1")
            status = int(head[9:12])
            if status >= 200:
                break
            data = rest  # such as 103, before the answer
        lower = head.lower()
        if status in (204, 304):
            self._missing = 0
        elif b"\r\ntransfer-encoding:" in lower:
            self._missing = -1
        else:
            at = lower.find(b"\r\ncontent-length:")
            if at >= 0:
                length = lower[at + 17 :].partition(b"\r\n")[0].strip()
                if not length.isdigit():
                    raise Broken("the answer has a wrong Content-Length")
                self._missing = int(length)
        if b"\r\nconnection:" in lower or head[7:8] == b"0":
            after = lower.partition(b"\r\nconnection:")[2].partition(b"\r\n")[0]
            self._keep = b"keep-alive" in after if head[7:8] == b"0" else b"close" not in after
        self._head, self._status, self._buffer = head, status, bytearray(rest) if self._missing is None or self._missing != len(rest) else rest
        return True

    def _chunks(self) -> Optional[Reply]:
        buffer, at = bytes(self._buffer), 0
        while True:
            line = buffer.find(b"\r\n", at)
            if line < 0:
                break
            try:
                size = int(buffer[at:line].partition(b";")[0], 16)
            except ValueError:
                raise Broken("the answer has a wrong chunk") from None
            if size == 0:
                end = buffer.find(b"\r\n\r\n", line)  # there may be trailers
                if end < 0:
                    break
                return Reply(self._status, self._head, bytes(self._body), self._keep and end + 4 == len(buffer))
            if len(buffer) < line + size + 4:
                break
            self._body += buffer[line + 2 : line + 2 + size]
            at = line + size + 4
        self._buffer = bytearray(buffer[at:])
        return None


class Service:
    """Where the service is, and the bytes of requests to it."""

    def __init__(self, base_url: str, token: Optional[str]) -> None:
        scheme, rest = base_url.partition(":")[::2]
        if scheme == "unix":
            url, path = urlsplit("http://localhost"), "/" + rest.lstrip("/") if rest.startswith("//") else rest
        else:
            url = urlsplit(base_url)
            path = unquote(url.netloc) if scheme == "http+unix" else ""
        self.https, self.socket_path = scheme == "https", path
        good = path if scheme in ("unix", "http+unix") else url.hostname if scheme in ("http", "https") else ""
        if not good or url.query or url.fragment or "\0" in path or token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError(f"base_url is {base_url!r}, want one such as http://127.0.0.1:8080 or unix:/run/stint.sock")
        self.host = "localhost" if path else url.hostname or ""
        self.port = 0 if path else url.port or (443 if self.https else 80)
        self.name = f"unix:{path}" if path else f"{self.host}:{self.port}"
        self._prefix = url.path.rstrip("/")
        host = self.host if path or url.port is None else url.netloc.rpartition("@")[2]
        self._fields = f"Host: {host}\r\nContent-Type: application/json\r\n"
        if token:
            self._fields += f"Authorization: Bearer {token}\r\n"
        self._heads: dict[str, bytes] = {}

    def bytes(self, call: Call, waited: float = 0) -> bytes:
        """Return the request of a call that began waited seconds ago: so much less the answer may be held back."""
        if call.method == "GET":
            return f"GET {self._prefix}{call.path} HTTP/1.1\r\n{self._fields}\r\n".encode("ascii")
        head = self._heads.get(call.path)
        if head is None:
            head = self._heads[call.path] = f"{call.method} {self._prefix}{call.path} HTTP/1.1\r\n{self._fields}".encode("ascii")
        prefer = b"" if call.hold is None else b"Prefer: wait=%.3f\r\n" % max(0.0, call.hold - waited)
        key = b"Idempotency-Key: %b\r\n" % call.key.encode("ascii") if call.key else b""
        return b"%b%b%bContent-Length: %d\r\n\r\n%b" % (head, prefer, key, len(call.body), call.body)

    def unreachable(self, err: BaseException, timeout: float) -> StintError:
        hint = f"is stint serve running at {self.name}, and is timeout ({timeout} s) long enough?"
        return StintError(f"no answer: {str(err) or type(err).__name__}", 0, hint)

    def exhausted(self, connections: int) -> StintError:
        return StintError(f"all {connections} connections are in use", 0, "raise max_connections above the number of calls at once, or call less")


_encode_text = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _encode(value: Any) -> bytes:
    return _encode_text(value).encode()


class Verbs:
    """The calls of a client."""

    def __init__(self, base_url: str, token: Optional[str], timeout: float, max_connections: int) -> None:
        if max_connections < 1:
            raise ValueError(f"max_connections is {max_connections!r}, want 1 or more")
        self._service, self._timeout, self._max = Service(base_url, token), timeout, max_connections

    def _take(self, attributes: Mapping[str, str], cost: int, count_refused: bool, key: Optional[str] = None) -> Call:
        body: dict[str, Any] = {"attributes": dict(attributes), "cost": cost}
        if count_refused:
            body["count_refused"] = True
        return Call("POST", "/v1/take", _encode(body), min(HOLD, self._timeout / 2), self._timeout, checked(key))

    def _waiting(
        self, attributes: Mapping[str, str], cost: int, timeout: Optional[float], key: Optional[str]
    ) -> Generator[Union[Call, float], Any, Decision]:
        """The steps of a wait: calls, whose decisions are sent to it, and pauses in seconds."""
        body = _encode({"attributes": dict(attributes), "cost": cost, "queue": True})
        named = checked(key)
        end = math.inf if timeout is None else time.monotonic() + timeout
        refused = 0
        while True:
            # Newcomers join shorter lines only, so that nobody who was refused finds every line full.
            hold = max(0.0, min(HOLD if refused else HOLD / 2, end - time.monotonic()))
            d: Decision = yield Call("POST", "/v1/take", body, hold, self._timeout + hold, named)
            if d.allowed:
                if d.delay > 0:
                    yield d.delay
                return d
            pause = d.retry_after
            if pause is None:
                raise Refused(d, f"refused, and no wait helps: {d.detail}")
            if time.monotonic() + pause > end:
                raise Refused(d, f"refused, and the wait of {pause} s is longer than the timeout: {d.detail}")
            if refused:  # others ask at the same moment
                pause += random.uniform(0, min(pause / 10, 0.1))
            yield max(pause, 0.001)
            refused += 1

    def _post(self, path: str, body: Mapping[str, Any]) -> Call:
        return Call("POST", path, _encode(body), None, self._timeout)

    def _reserve(
        self, attributes: Mapping[str, str], cost: Optional[int], ttl: Optional[float], declared: Optional[int], charge_expired: bool
    ) -> Call:
        body: dict[str, Any] = {"attributes": dict(attributes)}
        for name, value in (("cost", cost), ("declared", declared), ("ttl", None if ttl is None else seconds(ttl))):
            if value is not None:
                body[name] = value
        if charge_expired:
            body["charge_expired"] = True
        return self._post("/v1/reserve", body)._replace(hold=0.0)

    def _usage(
        self,
        customer: Optional[str],
        key: Union[str, Sequence[str], None],
        limit: Optional[str],
        from_: Optional[str],
        to: Optional[str],
        by: Optional[str],
        timezone: Optional[str],
    ) -> Call:
        query = {"customer": customer, "key": key, "limit": limit, "from": from_, "to": to, "by": by, "timezone": timezone}
        path = "/v1/usage?" + urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        return Call("GET", path, b"", None, self._timeout)


def checked(key: Optional[str]) -> str:
    """Return an idempotency key as a header field can have it; "" for None."""
    if key is not None and not re.fullmatch("[!-~](?:[ -~]{0,254}[!-~])?", key):
        raise ValueError(f"idempotency_key is {key!r}, want 1 to 256 printable ASCII characters without spaces around, such as a UUID")
    return key or ""


def seconds(ttl: float) -> str:
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
        raise TypeError(f"ttl is {ttl!r}, want seconds as a number, such as 60")
    return f"{ttl}s"


def blocking(sleep: Any) -> None:
    """Raise a TypeError if sleep, a function or what it returned, has to be awaited."""
    if inspect.iscoroutinefunction(sleep) or inspect.isawaitable(sleep):
        if inspect.iscoroutine(sleep):
            sleep.close()
        raise TypeError("sleep has to be awaited, so the client would not wait: use AsyncClient in a program of asyncio")


def settled(call: Call, reply: Reply) -> dict[str, Any]:
    """What an answer says. What is neither a success nor a refusal is raised."""
    try:
        raw = json.loads(reply.body) if reply.body else {}
    except ValueError:
        raw = None
    if isinstance(raw, dict) and (reply.status < 300 or "violated-policies" in raw):
        return raw
    detail = isinstance(raw, dict) and raw.get("detail") or "no text of stint"
    path = call.path.partition("?")[0]
    raise StintError(f"{call.method} {path} was answered with {reply.status}: {detail}", reply.status, HINTS.get(reply.status, "see docs/reference/http-api.md"))


def _result(r: Mapping[str, Any]) -> Result:
    # Not by __init__, which takes longer than the rest of a call, since the class is frozen.
    result = object.__new__(Result)
    result.__dict__.update(
        name=r["name"], allowed=r["allowed"], quota=r["quota"], remaining=r["remaining"], retry_after=r["retry_after"], reset_after=r["reset_after"], raw=r
    )
    return result


_ADMITTED = Decision(True).__dict__


def decided(call: Call, reply: Reply) -> tuple[Decision, dict[str, Any]]:
    raw = settled(call, reply)
    results = tuple([_result(r) for r in raw.get("limits", ())])
    warnings = tuple([r.name for r in results if r.raw.get("soft") and not r.raw.get("shadow")])
    if "violated-policies" not in raw:
        if raw.get("allowed") is not True and "id" not in raw:
            raise StintError(f"POST {call.path} was answered with {reply.status} without a decision", reply.status, "is base_url that of stint serve?")
        decision = object.__new__(Decision)
        decision.__dict__.update(
            _ADMITTED,
            results=results,
            delay=raw.get("delay", 0.0),
            permit=raw.get("permit"),
            tags=_pairs(raw.get("tags", ())),
            warnings=warnings,
            headers={},
            repeated=raw.get("repeated", False),
            _reply=reply,
        )
        return decision, raw
    action = raw.get("action", {})
    return Decision(
        allowed=False,
        results=results,
        retry_after=raw.get("retry_after"),
        violated=tuple(raw["violated-policies"]),
        reason=raw.get("reason", ""),
        detail=raw.get("detail", ""),
        status=int(reply.get("x-stint-status") or reply.status),
        location=reply.get("x-stint-location"),
        warnings=warnings,
        headers=_pairs(action.get("header", ())),
        body=action.get("body"),
        content_type=action.get("content_type", ""),
        repeated=raw.get("repeated", False),
        _reply=reply,
    ), raw


def _pairs(pairs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {p["name"]: p["value"] for p in pairs}


@dataclass
class Reserved:
    """What was reserved of limits, or the refusal."""

    decision: Decision
    id: str = ""
    reserved: int = 0
    ends: str = ""
    state: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    used: int = 0

    def __bool__(self) -> bool:
        return self.decision.allowed

    def _read(self, raw: Mapping[str, Any]) -> None:
        self.raw, self.id, self.reserved = raw, raw["id"], raw["reserved"]
        self.ends, self.state = raw["ends"], raw["state"]

    def _renewal(self, used: int, ttl: Optional[float]) -> dict[str, Any]:
        self.used = max(self.used, used)  # also where the call fails: it was used
        return {"used": used} if ttl is None else {"used": used, "ttl": seconds(ttl)}

    def _known(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if not self.id:
            raise Refused(self.decision, "the reservation was refused, so there is nothing to settle")
        return {"id": self.id, **body}
