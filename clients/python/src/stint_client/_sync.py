from __future__ import annotations

import socket
import ssl
import threading
import time
import weakref
from collections import deque
from types import TracebackType
from typing import Any, Callable, Literal, Mapping, Optional, Sequence, Union

from . import _fork
from ._wire import Broken, Call, Decision, Parser, Refused, Reply, Reserved, Service, StintError, UsageRows, Verbs, blocking, decided, settled


class _Connection:
    """A place in the pool, which has a connection or not. It is used by one call at a time."""

    __slots__ = ("pool", "sock", "made", "__weakref__")

    def __init__(self, pool: "_Pool") -> None:
        self.pool = weakref.ref(pool)
        self.sock: Optional[socket.socket] = None
        self.made = 0

    def fileno(self) -> int:
        return self.sock.fileno() if self.sock else -1

    def stands(self) -> bool:
        """Whether the service has neither closed the idle connection nor sent anything."""
        if self.sock is None:
            return False
        try:
            self.sock.settimeout(0)
            self.sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        self.drop()
        return False

    def open(self, service: Service, context: Optional[ssl.SSLContext], end: float, made: int) -> None:
        self.made = made
        if service.socket_path:
            self._connect(socket.AF_UNIX, service.socket_path, end)
            return
        failed: Optional[OSError] = None
        for family, _, _, _, address in socket.getaddrinfo(service.host, service.port, 0, socket.SOCK_STREAM):
            try:
                sock = self._connect(family, address, end)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                break
            except OSError as err:
                self.drop()
                failed = err
        else:
            raise failed or OSError(f"{service.host} has no address")
        if context:
            encrypted = self.sock = context.wrap_socket(sock, server_hostname=service.host, do_handshake_on_connect=False)
            encrypted.do_handshake()

    def _connect(self, family: int, address: Any, end: float) -> socket.socket:
        sock = self.sock = socket.socket(family, socket.SOCK_STREAM)
        _fork.connections.add(self)
        sock.settimeout(max(0.001, end - time.monotonic()))
        sock.connect(address)
        return sock

    def drop(self) -> None:
        """End the connection at once, whatever still refers to it: the service then gives up a call that it holds in line."""
        sock, self.sock = self.sock, None
        if sock is None:
            return
        _fork.connections.discard(self)
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended
        sock.close()

    def __del__(self) -> None:
        # An exception of a signal handler can lose a place between two steps of the interpreter.
        self.drop()
        pool = self.pool()
        if pool is not None:
            pool.give(_Connection(pool))


class _Pool:
    """At most so many connections.

    It has no lock, which a fork could copy while another thread holds it, and which would not know greenlets if the program
    was patched later: deques are atomic. Those who wait have a lock each, made when they begin to wait.
    """

    def __init__(self, size: int) -> None:
        self.made = 0  # by the number of the last close
        self._places: deque[_Connection] = deque()  # those with connections at the right, used last first
        self._waiting: deque[Any] = deque()
        self._places.extend([_Connection(self) for _ in range(size)])

    def take(self, end: float) -> Optional[_Connection]:
        """Take a place, or None after the end of a wait. Those who wait are served in the order in which they came."""
        if not self._waiting:
            try:
                return self._places.pop()
            except IndexError:
                pass
        turn, woken = threading.Lock(), False
        turn.acquire()
        self._waiting.append(turn)
        try:
            self._wake()  # for a place that was given before this one waited
            while True:
                woken = turn.acquire(timeout=max(0, min(end - time.monotonic(), threading.TIMEOUT_MAX)))
                if not woken:
                    return None
                try:
                    return self._places.pop()
                except IndexError:  # one that saw nobody wait was faster
                    woken = False
                    self._waiting.appendleft(turn)
                    self._wake()
        finally:
            if not woken:
                try:
                    self._waiting.remove(turn)
                except ValueError:
                    self._wake()  # the next one, in place of this one that has left

    def give(self, place: _Connection) -> None:
        if place.sock is not None and place.made != self.made:
            place.drop()
        if place.sock is None:
            self._places.appendleft(place)
        else:
            self._places.append(place)
        self._wake()

    def _wake(self) -> None:
        if self._waiting and self._places:
            try:
                self._waiting.popleft().release()
            except IndexError:
                pass  # another thread did it

    def close(self) -> None:
        self.made += 1
        for _ in range(len(self._places)):
            try:
                self.give(self._places.pop())
            except IndexError:
                return  # the others are in use, and closed when they are given back


class Reservation(Reserved):
    """What was reserved of limits, or the refusal.

    In a with statement that ends without a commit, also by an exception, what renew has reported last is
    committed; without a renew all comes back.
    """

    def __init__(self, client: "Client", decision: Decision) -> None:
        super().__init__(decision)
        self._client = client

    def renew(self, used: int, ttl: Optional[float] = None) -> "Reservation":
        """Say what was used so far; it lives on for ttl seconds, or as long as before."""
        return self._settle("/v1/renew", self._renewal(used, ttl))

    def commit(self, actual: int) -> "Reservation":
        """Say what was used. The rest comes back; what is over is charged. Again with the same number is harmless."""
        return self._settle("/v1/commit", {"actual": actual})

    def release(self) -> "Reservation":
        """Give all back."""
        return self._settle("/v1/release", {})

    def _settle(self, path: str, body: Mapping[str, Any]) -> "Reservation":
        call = self._client._post(path, self._known(body))
        self._read(settled(call, self._client._call(call)))
        return self

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self.state == "open":
            try:
                self.commit(self.used) if self.used else self.release()
            except StintError:
                if kind is None:
                    raise  # else the error of the block is the one to see; the reservation ends by itself


class Client(Verbs):
    """A client of one service. It is safe for use by several threads or greenlets, and by processes that fork.

    ``base_url`` is such as http://127.0.0.1:8080, or unix:/run/stint.sock for a service that listens on a socket,
    ``token`` that of an identity with the role take, ``timeout`` how many seconds the service may take to answer; the
    time for which wait is held in line comes on top. ``context`` is for TLS: a CA of your own, or a client certificate.

    At most ``max_connections`` calls are made at once, others wait for one of them to end. A connection serves one call at a
    time and belongs to the process that made it. One whose call did not end with a whole answer is closed. A call is
    sent again only where the service cannot have read all of it, or where it has an idempotency key.
    """

    def __init__(
        self,
        base_url: str,
        token: Optional[str] = None,
        timeout: float = 10.0,
        context: Optional[ssl.SSLContext] = None,
        *,
        max_connections: int = 100,
    ) -> None:
        super().__init__(base_url, token, timeout, max_connections)
        self._context = (context or ssl.create_default_context()) if self._service.https else None
        self._forget()
        _fork.owners.add(self)

    def _forget(self) -> None:
        self._pool = _Pool(self._max)

    def take(self, attributes: Mapping[str, str], cost: int = 1, *, count_refused: bool = False, idempotency_key: Optional[str] = None) -> Decision:
        """Take cost from every limit that the request meets, or from none. A cost of 0 only looks.

        A limit with on_exceed: queue holds the answer back for half of the timeout at most, and 5 s.

        idempotency_key names this take, so that it can be sent again when its answer was lost: one with the same key,
        attributes and cost as one that was admitted within 10 minutes is admitted and charged nothing. Use a new text for each
        take, such as a UUID. With it the client sends a call again itself whose connection broke, within the timeout.
        """
        call = self._take(attributes, cost, count_refused, idempotency_key)
        return decided(call, self._call(call))[0]

    def wait(
        self,
        attributes: Mapping[str, str],
        cost: int = 1,
        *,
        timeout: Optional[float] = None,
        sleep: Optional[Callable[[float], None]] = None,
        idempotency_key: Optional[str] = None,
    ) -> Decision:
        """Take, and wait for the turn: in line at the service for up to 5 s, else by sleep, time.sleep by default.

        Those who wait at one service for the same bucket are served in the order in which they came. A turn
        that is further away, or at a limit for which there is no line, is waited for by sleeping for
        retry_after and asking again. Raises Refused at once where no wait helps, or where it would be longer
        than what is left of timeout. idempotency_key is that of take.
        """
        if sleep is None:
            sleep = time.sleep  # now, since it may have been patched for greenlets
        else:
            blocking(sleep)
        steps = self._waiting(attributes, cost, timeout, idempotency_key)
        answer: Optional[Decision] = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            if isinstance(step, Call):
                answer = decided(step, self._call(step))[0]
            else:
                blocking(sleep(step))

    def finish(self, attributes: Mapping[str, str], permit: int) -> None:
        """Give back the permit of a request in flight, with the attributes of its take."""
        call = self._post("/v1/finish", {"attributes": dict(attributes), "permit": permit})
        settled(call, self._call(call))

    def explain(self, attributes: Mapping[str, str], cost: int = 1) -> dict[str, Any]:
        """Say which limits the request meets, why, and how full they are. Takes nothing."""
        call = self._post("/v1/explain", {"attributes": dict(attributes), "cost": cost})
        return settled(call, self._call(call))

    def reserve(
        self,
        attributes: Mapping[str, str],
        cost: Optional[int] = None,
        *,
        ttl: Optional[float] = None,
        declared: Optional[int] = None,
        charge_expired: bool = False,
    ) -> Reservation:
        """Take an estimate before the cost is known. Without cost the service estimates it where it is told how.

        A refusal is a Reservation whose decision says so. ttl is 1 to 3600 seconds, 60 by default.
        """
        call = self._reserve(attributes, cost, ttl, declared, charge_expired)
        decision, raw = decided(call, self._call(call))
        reservation = Reservation(self, decision)
        if decision:
            reservation._read(raw)
        return reservation

    def reserving(
        self,
        attributes: Mapping[str, str],
        cost: Optional[int] = None,
        *,
        ttl: Optional[float] = None,
        declared: Optional[int] = None,
        charge_expired: bool = False,
    ) -> Reservation:
        """Reserve for a with statement: raises Refused where reserve returns a refusal.

        What renew has reported last is committed at its end, or what commit says; else all comes back.
        """
        r = self.reserve(attributes, cost, ttl=ttl, declared=declared, charge_expired=charge_expired)
        if not r:
            raise Refused(r.decision, f"refused: {r.decision.detail}")
        return r

    def usage(
        self,
        *,
        customer: Optional[str] = None,
        key: Union[str, Sequence[str], None] = None,
        limit: Optional[str] = None,
        from_: Optional[str] = None,
        to: Optional[str] = None,
        by: Optional[Literal["hour", "day", "month", "total"]] = None,
        timezone: Optional[str] = None,
    ) -> UsageRows:
        """Rows of what was used. key is NAME=VALUE, one for each attribute."""
        call = self._usage(customer, key, limit, from_, to, by, timezone)
        return UsageRows(settled(call, self._call(call)))

    def close(self) -> None:
        """Close the connections, those of calls when they end. The next call opens another one."""
        self._pool.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def _call(self, call: Call) -> Reply:
        request = self._service.bytes(call)
        begin = time.monotonic()
        end = begin + call.timeout
        pool = self._pool
        place = pool.take(end)
        if place is None:
            raise self._service.exhausted(self._max)
        reply: Optional[Reply] = None
        broken = 0
        try:
            while True:
                kept = place.stands()
                sent = kept or broken > 0
                try:
                    if not kept:
                        place.open(self._service, self._context, end, pool.made)
                        sent = True
                    sock = place.sock
                    assert sock is not None
                    sock.settimeout(max(0.001, end - time.monotonic()))
                    try:
                        sock.sendall(request)
                    except ConnectionError:
                        if not kept:
                            raise
                        place.drop()
                        continue  # the connection took less than the whole request, so it was not decided
                    parser = Parser()
                    while True:
                        reply = parser.feed(sock.recv(65536))
                        if reply is not None:
                            return reply
                        sock.settimeout(max(0.001, end - time.monotonic()))
                except OSError:
                    place.drop()
                    broken += 1
                    pause = call.pause(broken, end - time.monotonic())
                    if pause is None or not sent:
                        raise
                    time.sleep(pause)
                    request = self._service.bytes(call, time.monotonic() - begin)
        except (OSError, Broken) as err:
            raise self._service.unreachable(err, self._timeout) from err
        finally:
            # Also where a signal handler or a greenlet's timeout ends the call by an exception of its own.
            if reply is None or not reply.kept:
                place.drop()
            pool.give(place)
