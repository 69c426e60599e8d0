from __future__ import annotations

import asyncio
import select
import ssl
from collections import deque
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Awaitable, Literal, Mapping, Optional, Sequence, TypeVar, Union, cast

from . import _fork
from ._wire import Broken, Call, Decision, Parser, Refused, Reply, Reserved, StintError, UsageRows, Verbs, decided, settled

T = TypeVar("T")


class _Connection(asyncio.Protocol):
    """A connection, which serves one call at a time."""

    def __init__(self, made: int) -> None:
        self.made = made
        self._transport: Optional[asyncio.Transport] = None
        self._parser = Parser()
        self._answer: Optional[asyncio.Future[Reply]] = None
        self._poll: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if hasattr(select, "poll") and not transport.get_extra_info("ssl_object"):
            self._poll = select.poll()
            self._poll.register(self.fileno(), select.POLLIN)
        _fork.connections.add(self)

    def fileno(self) -> int:
        sock = self._transport.get_extra_info("socket") if self._transport else None
        return sock.fileno() if sock else -1

    def stands(self) -> bool:
        """Whether the service has not closed the idle connection, also where the loop has not noticed yet."""
        if self._transport is None or self._transport.is_closing():
            return False
        if self._poll is None or not self._poll.poll(0):
            return True
        self.drop()
        return False

    async def ask(self, request: bytes, timeout: float) -> Reply:
        if self._transport is None:
            raise ConnectionError("the connection ended before the request")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()
        self._answer = answer
        self._parser = Parser()
        late = loop.call_later(timeout, self._fail, TimeoutError("timed out"))
        try:
            self._transport.write(request)
            return await answer
        finally:
            late.cancel()
            self._answer = None

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.drop()  # nothing was asked
            return
        try:
            reply = self._parser.feed(data)
        except Broken as err:
            self._fail(err)
            return
        if reply is not None and not self._answer.done():
            self._answer.set_result(reply)

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._transport = None
        _fork.connections.discard(self)
        if self._answer is None:
            return
        try:
            if exc is None:
                reply = self._parser.feed(b"")
                if reply is not None and not self._answer.done():
                    self._answer.set_result(reply)
                return
        except ConnectionError as err:
            exc = err
        self._fail(exc)

    def _fail(self, err: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(err)

    def drop(self) -> None:
        """End the connection at once: the service then gives up a call that it holds in line."""
        if self._transport is not None:
            self._transport.abort()


class _Pool:
    """At most so many connections, of one event loop."""

    def __init__(self, size: int) -> None:
        self._free = size
        self.idle: list[_Connection] = []  # the one used last is taken first
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self.made = 0  # by the number of the last close

    async def enter(self, timeout: float) -> bool:
        """Take a place, or return False after timeout. Those who wait are served in the order in which they came."""
        if self._free > 0:
            self._free -= 1
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(turn)
        late = loop.call_later(timeout, _give_up, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():
                self.leave()
            raise
        finally:
            late.cancel()

    def leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1

    def close(self) -> None:
        self.made += 1
        while self.idle:
            self.idle.pop().drop()


def _give_up(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


_settling: set[asyncio.Future[Any]] = set()
_inherited: list[Any] = []  # of the parent process: what ends with them would change the parent's event loop


async def settle(call: Awaitable[T]) -> T:
    """Await a call that is made to its end also where the task that awaits it is cancelled."""
    task = asyncio.ensure_future(call)
    _settling.add(task)
    task.add_done_callback(_settled)
    return await asyncio.shield(task)


def _settled(task: asyncio.Future[Any]) -> None:
    _settling.discard(task)
    if not task.cancelled():
        task.exception()  # so that it counts as seen where nobody awaits it any more


class AsyncReservation(Reserved):
    """What was reserved of limits, or the refusal.

    In an async with statement that ends without a commit, also by an exception or a cancellation, what renew has
    reported last is committed; without a renew all comes back.
    """

    def __init__(self, client: "AsyncClient", decision: Decision) -> None:
        super().__init__(decision)
        self._client = client

    async def renew(self, used: int, ttl: Optional[float] = None) -> "AsyncReservation":
        """Say what was used so far; it lives on for ttl seconds, or as long as before."""
        return await self._settle("/v1/renew", self._renewal(used, ttl))

    async def commit(self, actual: int) -> "AsyncReservation":
        """Say what was used. The rest comes back; what is over is charged. Again with the same number is harmless."""
        return await self._settle("/v1/commit", {"actual": actual})

    async def release(self) -> "AsyncReservation":
        """Give all back."""
        return await self._settle("/v1/release", {})

    async def _settle(self, path: str, body: Mapping[str, Any]) -> "AsyncReservation":
        call = self._client._post(path, self._known(body))
        self._read(settled(call, await self._client._call(call)))
        return self

    async def __aenter__(self) -> "AsyncReservation":
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self.state == "open":
            try:
                await settle(self.commit(self.used) if self.used else self.release())
            except StintError:
                if kind is None:
                    raise  # else the error of the block is the one to see; the reservation ends by itself


class _Reserving(AbstractAsyncContextManager[AsyncReservation]):
    def __init__(self, client: "AsyncClient", call: Call) -> None:
        self._client, self._call = client, call

    async def __aenter__(self) -> AsyncReservation:
        r = self._reservation = await self._client._reserved(self._call)
        if not r:
            raise Refused(r.decision, f"refused: {r.decision.detail}")
        return r

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await self._reservation.__aexit__(kind, error, trace)


class AsyncClient(Verbs):
    """A client of one service for programs of asyncio: no call blocks the event loop, and none needs a thread.

    The arguments and verbs are those of Client. At most ``max_connections`` calls are made at once in an event loop, others
    wait for one of them to end. A call that is cancelled ends its connection: the service gives up what it held in
    line, and whether the call was charged is not known.
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
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        _fork.owners.add(self)

    def _forget(self) -> None:
        _inherited.append(self._pools)
        self._pools = {}

    async def take(self, attributes: Mapping[str, str], cost: int = 1, *, count_refused: bool = False, idempotency_key: Optional[str] = None) -> Decision:
        """Take cost from every limit that the request meets, or from none. A cost of 0 only looks.

        A limit with on_exceed: queue holds the answer back for half of the timeout at most, and 5 s.

        idempotency_key names this take, so that it can be sent again when its answer was lost: one with the same key,
        attributes and cost as one that was admitted within 10 minutes is admitted and charged nothing. Use a new text for each
        take, such as a UUID. With it the client sends a call again itself whose connection broke, within the timeout.
        """
        call = self._take(attributes, cost, count_refused, idempotency_key)
        return decided(call, await self._call(call))[0]

    async def wait(
        self, attributes: Mapping[str, str], cost: int = 1, *, timeout: Optional[float] = None, idempotency_key: Optional[str] = None
    ) -> Decision:
        """Take, and wait for the turn: in line at the service for up to 5 s, else by sleep. It can be cancelled.

        Those who wait at one service for the same bucket are served in the order in which they came. A turn
        that is further away, or at a limit for which there is no line, is waited for by sleeping for
        retry_after and asking again. Raises Refused at once where no wait helps, or where it would be longer
        than what is left of timeout. idempotency_key is that of take.
        """
        steps = self._waiting(attributes, cost, timeout, idempotency_key)
        answer: Optional[Decision] = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            if isinstance(step, Call):
                answer = decided(step, await self._call(step))[0]
            else:
                await asyncio.sleep(step)

    async def finish(self, attributes: Mapping[str, str], permit: int) -> None:
        """Give back the permit of a request in flight, with the attributes of its take."""
        call = self._post("/v1/finish", {"attributes": dict(attributes), "permit": permit})
        settled(call, await self._call(call))

    async def explain(self, attributes: Mapping[str, str], cost: int = 1) -> dict[str, Any]:
        """Say which limits the request meets, why, and how full they are. Takes nothing."""
        call = self._post("/v1/explain", {"attributes": dict(attributes), "cost": cost})
        return settled(call, await self._call(call))

    async def reserve(
        self,
        attributes: Mapping[str, str],
        cost: Optional[int] = None,
        *,
        ttl: Optional[float] = None,
        declared: Optional[int] = None,
        charge_expired: bool = False,
    ) -> AsyncReservation:
        """Take an estimate before the cost is known. Without cost the service estimates it where it is told how.

        A refusal is a reservation whose decision says so. ttl is 1 to 3600 seconds, 60 by default.
        """
        return await self._reserved(self._reserve(attributes, cost, ttl, declared, charge_expired))

    async def _reserved(self, call: Call) -> AsyncReservation:
        decision, raw = decided(call, await self._call(call))
        reservation = AsyncReservation(self, decision)
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
    ) -> AbstractAsyncContextManager[AsyncReservation]:
        """Reserve for an async with statement: raises Refused where reserve returns a refusal.

        What renew has reported last is committed at its end, or what commit says; else all comes back.
        """
        return _Reserving(self, self._reserve(attributes, cost, ttl, declared, charge_expired))

    async def usage(
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
        return UsageRows(settled(call, await self._call(call)))

    async def aclose(self) -> None:
        """Close the connections of this event loop, those of calls when they end. The next call opens another one."""
        pool = self._pools.get(asyncio.get_running_loop())
        if pool is not None:
            pool.close()
            await asyncio.sleep(0)  # in which the loop closes the sockets

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await self.aclose()

    def _pool_of(self, loop: asyncio.AbstractEventLoop) -> _Pool:
        pool = self._pools.get(loop)
        if pool is None:
            for other in list(self._pools):
                if other.is_closed():
                    self._pools.pop(other, None)
            pool = self._pools[loop] = _Pool(self._max)
        return pool

    async def _connect(self, loop: asyncio.AbstractEventLoop, connection: _Connection) -> None:
        service = self._service
        if service.socket_path:
            await loop.create_unix_connection(lambda: connection, service.socket_path)
        else:
            await loop.create_connection(lambda: connection, service.host, service.port, ssl=self._context)

    async def _call(self, call: Call) -> Reply:
        request = self._service.bytes(call)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        end = begin + call.timeout
        pool = self._pool_of(loop)
        if not await pool.enter(call.timeout):
            raise self._service.exhausted(self._max)
        connection: Optional[_Connection] = None
        reply: Optional[Reply] = None
        broken = 0
        try:
            while pool.idle and connection is None:
                kept = pool.idle.pop()
                connection = kept if kept.stands() else None
            while True:
                sent = connection is not None or broken > 0
                try:
                    if connection is None:
                        connection = _Connection(pool.made)
                        await asyncio.wait_for(self._connect(loop, connection), end - loop.time())
                        sent = True
                    reply = await connection.ask(request, end - loop.time())
                    return reply
                except OSError:
                    broken += 1
                    pause = call.pause(broken, end - loop.time())
                    if pause is None or not sent:
                        raise
                    if connection is not None:
                        connection.drop()
                        connection = None
                    await asyncio.sleep(pause)
                    request = self._service.bytes(call, loop.time() - begin)
        except (OSError, Broken, asyncio.TimeoutError) as err:
            raise self._service.unreachable(err, self._timeout) from err
        finally:
            if connection is not None:
                if reply is not None and reply.kept and connection.made == pool.made:
                    pool.idle.append(connection)
                else:
                    connection.drop()
            pool.leave()
