"""AsyncClient against a real service, as in test_client.py."""

import asyncio
import os
import random
import signal
import socket
import sys
import threading
import unittest

from connections import connections
from stint_client import AsyncClient, Refused, StintError
from test_client import Broken, BrokenService

URL = os.environ["STINT_URL"]
PORT = int(URL.rpartition(":")[2])
SEED = random.randrange(2**32)
print("seed", SEED, file=sys.stderr)


class OfNoLine(AsyncClient):
    """A client of a service that knows no line."""

    async def _call(self, call):
        return await super()._call(call._replace(body=call.body.replace(b',"queue":true', b"")))


class AsyncClientTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.client = AsyncClient(URL)
        self.user = {"user": f"{self.id()}-{os.getpid()}"}  # each test has counters of its own
        self.random = random.Random(SEED)

    async def asyncTearDown(self):
        await self.client.aclose()

    async def left(self):
        return (await self.client.take({**self.user, "path": "/tokens"}, cost=0)).results[0].remaining

    async def test_take(self):
        d = await self.client.take({**self.user, "path": "/two"})
        self.assertTrue(d and d.allowed)
        self.assertTrue(await self.client.take({**self.user, "path": "/two"}))
        d = await self.client.take({**self.user, "path": "/two"})
        self.assertEqual((bool(d), d.violated, d.reason, d.status), (False, ("two",), "rate_exceeded", 403))
        d = await self.client.take({**self.user, "path": "/two"}, cost=3, count_refused=True)
        self.assertEqual((d.reason, d.retry_after), ("cost_exceeds_limit", None))

    async def test_permit(self):
        job = {**self.user, "path": "/job"}
        d = await self.client.take(job)
        self.assertEqual((await self.client.take(job)).reason, "concurrency_exceeded")
        await self.client.finish(job, d.permit)
        self.assertTrue(await self.client.take(job))

    async def test_wait(self):
        self.assertEqual(len(await asyncio.gather(*[self.client.wait({**self.user, "path": "/ten"}) for _ in range(5)])), 5)
        async with OfNoLine(URL) as client:
            for _ in range(3):
                await client.wait({**self.user, "path": "/ten"})
        await self.client.take({**self.user, "path": "/two"}, cost=2)
        with self.assertRaises(Refused) as caught:
            await self.client.wait({**self.user, "path": "/two"}, timeout=1)
        self.assertEqual((caught.exception.decision.violated, caught.exception.status), (("two",), 403))
        with self.assertRaisesRegex(Refused, "no wait helps"):
            await self.client.wait({**self.user, "path": "/two"}, cost=3)

    async def test_waiting_stops_nobody(self):
        """While others wait for their turn, the event loop goes on."""
        second = {**self.user, "path": "/second"}
        await self.client.take(second)
        waiting = asyncio.gather(*[self.client.wait(second) for _ in range(2)])
        answered = 0
        while not waiting.done():
            self.assertTrue(await self.client.take({**self.user, "path": "/always"}))
            answered += 1
        self.assertGreater(answered, 20)

    async def test_cancelled_wait(self):
        """A wait that is cancelled leaves its place in line, whether it is held at the service or sleeps, and its connection."""
        second = {**self.user, "path": "/second"}
        await self.client.take(second)
        before = connections(PORT)
        for client in (self.client, OfNoLine(URL)):
            for _ in range(5):
                waiting = [asyncio.ensure_future(client.wait(second)) for _ in range(4)]
                await asyncio.sleep(self.random.uniform(0, 0.05))
                for w in waiting:
                    w.cancel()
                for r in await asyncio.gather(*waiting, return_exceptions=True):
                    self.assertTrue(isinstance(r, asyncio.CancelledError) or r, r)
            await client.aclose()
        self.assertLessEqual(connections(PORT), before)
        self.assertTrue(await self.client.wait(second, timeout=10), "20 are no longer before it, at one a second")

    async def test_calls_that_are_given_up(self):
        """Decisions are of the request that asked, also where others are cancelled in the middle, and no place is lost."""

        async def ask(rand):
            path = rand.choice(("/always", "/never"))
            asking = asyncio.ensure_future(client.take({**self.user, "path": path}))
            if rand.random() < 0.4:
                for _ in range(rand.randrange(8)):
                    await asyncio.sleep(0)
                if rand.random() < 0.5:
                    await asyncio.sleep(rand.uniform(0, 0.005))
                asking.cancel()
            try:
                d = await asking
            except asyncio.CancelledError:
                return 0
            if len(most) < 30:
                most.append(connections(PORT) - before)
            self.assertEqual((d.allowed, [r.name for r in d.results]), (path == "/always", [path[1:]]))
            return 1

        most = []
        await self.client.aclose()
        before = connections(PORT)
        async with AsyncClient(URL, timeout=120, max_connections=3) as client:
            answered = sum(await asyncio.gather(*[ask(random.Random(SEED + n)) for n in range(300)]))
            self.assertGreater(answered, 100)
            self.assertLessEqual(max(most), 3)
            self.assertEqual(client._pools[asyncio.get_running_loop()]._free, 3)
        self.assertEqual(connections(PORT), before)

    async def test_pool_is_used_up(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            async with AsyncClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.2, max_connections=1) as client:
                holding = asyncio.ensure_future(client._call(client._post("/v1/take", {})._replace(timeout=60)))
                await asyncio.sleep(0)
                with self.assertRaisesRegex(StintError, "max_connections") as caught:
                    await client.take({})
                self.assertEqual((caught.exception.status, holding.done()), (0, False))
                holding.cancel()
                await asyncio.gather(holding, return_exceptions=True)
                with self.assertRaisesRegex(StintError, "timed out"):
                    await client.take({})

    async def test_reserve(self):
        attributes = {**self.user, "path": "/tokens"}
        r = await self.client.reserve(attributes, 800, ttl=60, charge_expired=True)
        self.assertTrue(r and r.decision.allowed)
        self.assertEqual((r.reserved, r.state, await self.left()), (800, "open", 200))
        self.assertEqual((await r.renew(100, ttl=30)).raw["used"], 100)
        refused = await self.client.reserve(attributes, 300)
        self.assertFalse(refused)
        with self.assertRaises(Refused):
            await refused.release()
        self.assertEqual((await r.commit(300)).state, "committed")
        self.assertEqual(await self.left(), 700)
        with self.assertRaises(StintError) as caught:
            await r.commit(301)
        self.assertEqual(caught.exception.status, 409)

    async def test_reserving(self):
        attributes = {**self.user, "path": "/tokens"}
        for end in ("return", "raise", "commit", "release", "cancel"):
            for used in (0, 5):
                want = {"commit": 7, "release": 0}.get(end, used)
                before = await self.left()

                async def work():
                    async with self.client.reserving(attributes, 10) as r:
                        if used:
                            await r.renew(used)
                        if end == "raise":
                            1 / 0
                        if end in ("commit", "release"):
                            await (r.commit(7) if end == "commit" else r.release())
                        if end == "cancel":
                            entered.set()
                            await asyncio.sleep(60)

                entered = asyncio.Event()
                task = asyncio.ensure_future(work())
                if end == "cancel":
                    await entered.wait()
                    task.cancel()
                    await asyncio.sleep(0)
                    task.cancel()  # again, while it settles, as the scopes of anyio do
                (result,) = await asyncio.gather(task, return_exceptions=True)
                self.assertIsInstance(result, {"raise": ZeroDivisionError, "cancel": asyncio.CancelledError}.get(end, type(None)))
                for _ in range(2000):
                    if before - await self.left() == want:
                        break
                else:
                    self.fail(f"{end} after {used}: {before - await self.left()} is charged, want {want}")
        with self.assertRaises(Refused):
            async with self.client.reserving(attributes, 1001):
                self.fail("it was refused")

    async def test_explain_and_usage(self):
        await self.client.take({**self.user, "path": "/two"})
        self.assertEqual((await self.client.explain({**self.user, "path": "/two"}, cost=2))["limits"][0]["used"], 1)
        rows = await self.client.usage(key="user=" + self.user["user"], limit="two", by="total")
        self.assertEqual([row["used"] for row in rows], [1])

    async def test_faults(self):
        for client, status in (
            (AsyncClient(URL + "/nowhere"), 404),
            (AsyncClient("http://127.0.0.1:2"), 0),
            (AsyncClient(os.environ["STINT_AUTH_URL"]), 401),
            (AsyncClient(os.environ["STINT_AUTH_URL"], token=os.environ["STINT_TOKEN"]), None),
        ):
            async with client:
                if status is None:
                    self.assertTrue(await client.take({"user": "x"}))
                    continue
                with self.assertRaises(StintError) as caught:
                    await client.take({})
                self.assertEqual(caught.exception.status, status, caught.exception)

    async def test_unix_socket(self):
        async with AsyncClient(os.environ["STINT_UNIX"]) as client:
            for path in ("/always", "/never"):
                self.assertEqual((await client.take({"path": path})).allowed, path == "/always")

    async def test_nothing_is_charged_twice(self):
        server = Broken(random.Random(SEED))
        self.addCleanup(server.close)
        answered, failed = set(), 0
        async with AsyncClient(f"http://127.0.0.1:{server.port}", timeout=5) as client:
            for n in range(300):
                try:
                    await client.take({"call": str(n)}, cost=100)
                    answered.add(str(n))
                except StintError as err:
                    self.assertEqual(err.status, 0)
                    failed += 1
        self.assertEqual([call for call, n in server.read.items() if n > 1], [])
        self.assertLessEqual(answered, set(server.read))
        self.assertTrue(20 < failed <= server.ends)

    async def test_a_take_with_a_key_is_charged_once(self):
        server = BrokenService(random.Random(SEED))
        self.addCleanup(server.close)
        attributes = {**self.user, "path": "/tokens"}

        async def ask(n, cost):
            ask = self.random.choice((client.take, client.wait))
            d = await ask(attributes, cost, idempotency_key=f"{self.id()} {n}")
            return d.allowed, d.repeated

        costs = [self.random.randint(1, 5) for _ in range(100)]
        async with AsyncClient(f"http://127.0.0.1:{server.port}", timeout=120, max_connections=4) as client:
            answers = await asyncio.gather(*[ask(n, cost) for n, cost in enumerate(costs)], return_exceptions=True)
        self.assertEqual([a for a in answers if a not in ((True, False), (True, True))], [])
        self.assertEqual(1000 - await self.left(), sum(costs))
        self.assertEqual(len(server.read), 100)
        self.assertGreater(answers.count((True, True)), 10)
        with self.assertRaisesRegex(ValueError, "idempotency_key"):
            await self.client.take(attributes, idempotency_key="")


class LoopsTest(unittest.TestCase):
    def test_several_loops(self):
        """A client of a module is used by one event loop after the other, and by several threads with one each."""
        client, before = AsyncClient(URL), connections(PORT)

        async def work():
            async with client:
                return [bool(await client.take({"path": p})) for p in ("/always", "/never") * 5]

        for _ in range(3):
            self.assertEqual(asyncio.run(work()), [True, False] * 5)
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(asyncio.run(work()))) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(answers, [[True, False] * 5] * 4)
        self.assertEqual(connections(PORT), before)

    def test_fork(self):
        """Children of a process with an event loop, with calls that are under way, share no connection with it."""
        client = AsyncClient(URL, timeout=30)

        async def ask(seed, times):
            rand = random.Random(seed)
            for _ in range(times):
                path = rand.choice(("/always", "/never"))
                d = await client.take({"path": path})
                if (d.allowed, [r.name for r in d.results]) != (path == "/always", [path[1:]]):
                    return f"{path} was answered with {d}"
            return ""

        async def asks(seed):
            return "".join(await asyncio.gather(*[ask(seed + n, 20) for n in range(4)]))

        def child(seed, write):
            wrong = "it did not end"
            try:
                wrong = asyncio.run(asks(seed)) or f"{connections(PORT)} connections" * (connections(PORT) != 4)
            except BaseException as err:
                wrong = repr(err)
            finally:
                os.write(write, wrong.encode())
                os._exit(0)

        async def parent():
            reports = []
            for round in range(8):
                asking = asyncio.ensure_future(asks(SEED + 100 * round))
                for _ in range(round):
                    await asyncio.sleep(0.0005)  # calls are under way
                read, write = os.pipe()
                pid = os.fork()
                if pid == 0:
                    # As a process that serves in threads: the loop of the parent is no more.
                    worker = threading.Thread(target=child, args=(SEED + 100 * round + 50, write))
                    worker.start()
                    worker.join()
                os.close(write)
                reports.append((pid, read))
                self.assertEqual(await asking, "")
            for pid, read in reports:
                with os.fdopen(read, "rb") as pipe:
                    self.assertEqual(pipe.read().decode(), "")
                os.waitpid(pid, 0)
            await client.aclose()

        asyncio.run(parent())


if __name__ == "__main__":
    unittest.main()
