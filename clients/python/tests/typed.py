"""Checked by mypy --strict and pyright, not run: what the types of the client allow, and what they do not."""

import asyncio

from stint_client import AsyncClient, Client, Decision, Refused

stint = Client("http://127.0.0.1:8080", token="secret", timeout=2, max_connections=10)
decision: Decision = stint.take({"user": "u1"}, cost=2)
wait: "float | None" = decision.retry_after
with stint.reserving({"tenant": "acme"}, 800, ttl=60, declared=900) as reservation:
    used: int = reservation.renew(100).commit(312).reserved
rows = stint.usage(by="month", key=["user=u1"], from_="2026-01")
incomplete: "list[str]" = rows.incomplete
try:
    stint.wait({"user": "u1"}, timeout=5)
except Refused as refused:
    print(refused.decision.violated, refused.status)

stint.reserving({"tenant": "acme"}, tttl=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
stint.usage(by="fortnight")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
stint.wait({"user": "u1"}, sleep=asyncio.sleep)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
repeated: bool = stint.take({"user": "u1"}, idempotency_key="a-uuid").repeated
stint.take({"user": "u1"}, idempotency_key=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
stint.take({"user": 1})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]


async def asynchronous() -> int:
    async with AsyncClient("http://127.0.0.1:8080") as client:
        d: Decision = await client.take({"user": "u1"})
        d = await client.wait({"user": "u1"}, timeout=5, idempotency_key="a-uuid")
        async with client.reserving({"tenant": "acme"}, 800) as r:
            await r.commit(312)
        client.take({"user": "u1"}).allowed  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        return len(d.results) + len(await client.usage(by="total"))
