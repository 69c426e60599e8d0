"""The client against a real service: STINT_URL is one with ../limits.yaml, STINT_AUTH_URL one that asks for STINT_TOKEN."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
import threading
import unittest
import warnings
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest import mock
from urllib.parse import unquote

from connections import connections
from stint_client import Client, Refused, StintError

URL = os.environ["STINT_URL"]
PORT = int(URL.rpartition(":")[2])
SEED = random.randrange(2**32)
print("seed", SEED, file=sys.stderr)


class OfNoLine(Client):
    """A client of a service that knows no line."""

    def _call(self, call):
        return super()._call(call._replace(body=call.body.replace(b',"queue":true', b"")))


class ClientTest(unittest.TestCase):
    def setUp(self):
        self.client = Client(URL)
        self.addCleanup(self.client.close)
        self.user = {"user": f"{self.id()}-{os.getpid()}"}  # each test has counters of its own
        self.random = random.Random(SEED)

    def test_take(self):
        d = self.client.take({**self.user, "path": "/two"})
        self.assertTrue(d and d.allowed)
        self.assertEqual((d.retry_after, d.delay, d.violated, d.status), (0, 0, (), 200))
        (two,) = d.results
        self.assertEqual((two.name, two.allowed, two.quota, two.remaining), ("two", True, 2, 1))
        self.assertEqual(two.raw["window"], 3600)
        self.assertTrue(self.client.take({**self.user, "path": "/two"}))
        d = self.client.take({**self.user, "path": "/two"})
        self.assertFalse(d or d.allowed)
        self.assertEqual((d.violated, d.reason, d.status, d.results), (("two",), "rate_exceeded", 403, d.results))
        self.assertEqual([(r.name, r.allowed) for r in d.results], [("two", False)])
        self.assertTrue(0 < d.retry_after <= 3600, d.retry_after)
        self.assertIn("two", d.detail)

    def test_cost(self):
        self.assertEqual(self.client.take({**self.user, "path": "/two"}, cost=0).results[0].remaining, 2)
        d = self.client.take({**self.user, "path": "/two"}, cost=3)
        self.assertEqual((d.allowed, d.reason, d.retry_after), (False, "cost_exceeds_limit", None))
        self.assertFalse(self.client.take({**self.user, "path": "/debt"}, cost=5, count_refused=True))
        self.assertFalse(self.client.take({**self.user, "path": "/debt"}), "it is in debt")

    def test_answers_for_the_caller(self):
        self.assertEqual(self.client.take({**self.user, "path": "/tag"}).tags, {})
        self.assertEqual(self.client.take({**self.user, "path": "/tag"}).tags, {"X-RateLimit-Degraded": "tag"})
        self.client.take({**self.user, "path": "/away"})
        d = self.client.take({**self.user, "path": "/away"})
        self.assertEqual((d.allowed, d.status, d.location), (False, 302, "https://example.com/busy"))
        self.assertEqual((d.body, d.headers, d.content_type), (None, {}, ""))
        own = [self.client.take({**self.user, "path": "/own"}) for _ in range(3)]
        self.assertEqual([(d.allowed, d.status, d.warnings) for d in own], [(True, 200, ()), (True, 200, ("own",)), (False, 503, d.warnings)])
        d = own[2]
        self.assertEqual((d.body, d.content_type, d.headers), ("<p>ü</p>", "text/html", {"X-Reason": "quota", "X-Kind": "own"}))

    def test_permit(self):
        job = {**self.user, "path": "/job"}
        d = self.client.take(job)
        self.assertIsInstance(d.permit, int)
        self.assertEqual(self.client.take(job).reason, "concurrency_exceeded")
        self.client.finish(job, d.permit)
        self.assertTrue(self.client.take(job))

    def test_wait(self):
        second = {**self.user, "path": "/second"}
        self.client.wait(second)
        self.assertTrue(self.client.wait(second, sleep=self.fail), "the service holds it in line")
        with self.assertRaisesRegex(Refused, "longer than the timeout"):
            self.client.wait(second, timeout=0, sleep=self.fail)
        slept = []
        with OfNoLine(URL) as client:
            while not slept:
                client.wait({**self.user, "path": "/ten"}, sleep=lambda s: (slept.append(s), threading.Event().wait(s)))
        self.assertTrue(0 < slept[0] < 0.1, f"{slept}: not the exact retry_after")
        self.client.take({**self.user, "path": "/two"}, cost=2)
        with self.assertRaises(Refused) as caught:
            self.client.wait({**self.user, "path": "/two"}, timeout=1, sleep=self.fail)
        self.assertEqual((caught.exception.decision.violated, caught.exception.status), (("two",), 403))
        with self.assertRaisesRegex(Refused, "no wait helps"):
            self.client.wait({**self.user, "path": "/two"}, cost=3, sleep=self.fail)

    def test_a_wait_is_no_failure(self):
        with Client(URL, timeout=0.3) as client:
            for _ in range(2):  # the second one is held for longer than the timeout
                client.wait({**self.user, "path": "/second"}, sleep=self.fail)
        with Client(URL, timeout=4) as client:
            answers = []  # the queue is longer than the timeout allows: those that would come too late are refused at once
            threads = [threading.Thread(target=lambda: answers.append(client.take({**self.user, "path": "/line"}))) for _ in range(80)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual((len(answers), {d.reason for d in answers}), (80, {"", "rate_exceeded"}))

    def test_sleep_that_has_to_be_awaited(self):
        two = {**self.user, "path": "/two"}
        with self.assertRaisesRegex(TypeError, "AsyncClient"):
            self.client.wait(two, sleep=asyncio.sleep)
        self.assertEqual(self.client.take(two, cost=0).results[0].remaining, 2, "it is refused before it takes")
        with OfNoLine(URL) as client, self.assertRaisesRegex(TypeError, "AsyncClient"):
            while True:
                client.wait({**self.user, "path": "/ten"}, sleep=lambda s: asyncio.sleep(s))

    def test_options_are_typed(self):
        with self.assertRaises(TypeError):
            self.client.reserving({**self.user, "path": "/tokens"}, 1, tttl=3)
        with self.assertRaises(TypeError):
            self.client.usage(limits="two")

    def test_delay(self):
        slept = []
        for _ in range(2):
            d = self.client.wait({**self.user, "path": "/leaky"}, sleep=slept.append)
            self.assertTrue(d)
        self.assertEqual(len(slept), 1, "the second is held back")
        self.assertAlmostEqual(slept[0], d.delay)

    def left(self):
        return self.client.take({**self.user, "path": "/tokens"}, cost=0).results[0].remaining

    def test_reserve(self):
        attributes = {**self.user, "path": "/tokens"}
        r = self.client.reserve(attributes, 800, ttl=60, charge_expired=True)
        self.assertTrue(r and r.decision.allowed)
        self.assertEqual((r.reserved, r.state, self.left()), (800, "open", 200))
        self.assertEqual(r.decision.results[0].remaining, 200)
        self.assertEqual(r.renew(100, ttl=30).raw["used"], 100)
        self.assertEqual(r.renew(150).raw["used"], 150)
        refused = self.client.reserve(attributes, 300)
        self.assertFalse(refused)
        self.assertEqual(refused.decision.violated, ("tokens",))
        for settle in (refused.release, lambda: refused.commit(1), lambda: refused.renew(1)):
            with self.assertRaises(Refused):
                settle()
        for _ in range(2):
            self.assertEqual(r.commit(300).state, "committed")
        self.assertEqual((self.left(), r.raw["actual"]), (700, 300))
        with self.assertRaises(StintError) as caught:
            r.commit(301)
        self.assertEqual(caught.exception.status, 409)
        self.assertIn("an earlier call said something else", str(caught.exception))
        self.assertEqual(self.client.reserve(attributes, 700).release().state, "released")
        self.assertEqual(self.left(), 700)

    def test_estimate(self):
        r = self.client.reserve({**self.user, "path": "/tokens", "model": "new"}, declared=500)
        self.assertEqual((r.reserved, r.raw["estimate"]["declared"]), (100, 500))

    def test_with(self):
        attributes = {**self.user, "path": "/tokens"}
        with self.client.reserving(attributes, 800) as r:
            r.commit(200)
        self.assertEqual(self.left(), 800)
        with self.client.reserving(attributes, 700):
            self.assertEqual(self.left(), 100)
        self.assertEqual(self.left(), 800, "what was not committed comes back")
        with self.assertRaises(ZeroDivisionError):
            with self.client.reserving(attributes, 800):
                1 / 0
        self.assertEqual(self.left(), 800)
        for _ in range(20):
            self.user = {"user": self.user["user"] + "+"}
            attributes = {**self.user, "path": "/tokens"}
            reports = self.random.sample(range(1, 900), self.random.randrange(4))  # late ones as well: less than was reported
            end = self.random.choice(("return", "raise", "commit", "release"))
            before, want = self.left(), 0
            with self.subTest(reports=reports, end=end), self.client.reserving(attributes, min(before, 10)) as r:
                try:
                    with r:
                        for used in reports:
                            want = max(want, used)
                            r.renew(used)
                            self.assertEqual(r.used, want)
                        if end == "raise":
                            1 / 0
                        if end == "commit":
                            want = r.commit(min(before, 7)).raw["actual"]
                        if end == "release":
                            want = 0
                            r.release()
                except ZeroDivisionError:
                    pass
                self.assertIn(r.state, ("committed", "released"))
                self.assertEqual(before - self.left(), want, "the most that was reported is charged")
        with self.assertRaises(Refused) as caught:
            self.client.reserving(attributes, 1000)
            self.client.reserving(attributes, 900)
        self.assertEqual(caught.exception.decision.reason, "rate_exceeded")

    def test_explain_and_usage(self):
        self.client.take({**self.user, "path": "/two"})
        x = self.client.explain({**self.user, "path": "/two"}, cost=2)
        self.assertEqual((x["allowed"], x["limits"][0]["used"]), (False, 1))
        rows = self.client.usage(key="user=" + self.user["user"], limit="two", by="total", from_="2020-01")
        self.assertEqual([(row["limit"], row["used"]) for row in rows], [("two", 1)])
        self.assertEqual(rows.incomplete, [])

    def test_faults(self):
        for call, status, hint in (
            (lambda: self.client.take({"": "x"}), 400, "has a fault"),
            (lambda: self.client.usage(by="week"), 400, "has a fault"),
            (lambda: Client(URL + "/nowhere").take({}), 404, "HTTP port"),
            (lambda: Client("http://127.0.0.1:2").take({}), 0, "is stint serve running"),
            (lambda: Client(os.environ["STINT_AUTH_URL"]).take({}), 401, "--auth"),
            (lambda: Client(os.environ["STINT_AUTH_URL"], token="wrong-token-of-20-bytes").take({}), 401, "--auth"),
        ):
            with self.assertRaises(StintError) as caught:
                call()
            self.assertEqual(caught.exception.status, status, caught.exception)
            self.assertIn(hint, caught.exception.hint)
            self.assertNotIsInstance(caught.exception, Refused)
        for url in ("127.0.0.1:8080", "ftp://x", "http://", "http://x?y"):
            with self.assertRaises(ValueError):
                Client(url)

    def test_token(self):
        with Client(os.environ["STINT_AUTH_URL"] + "/", token=os.environ["STINT_TOKEN"]) as client:
            self.assertTrue(client.take({"user": "x"}))

    def test_unix_socket(self):
        url = os.environ["STINT_UNIX"]  # http+unix://%2F...
        path = unquote(url.removeprefix("http+unix://"))
        for form in (url, "unix:" + path, "unix://" + path):
            with Client(form) as client:
                for p in ("/always", "/never"):
                    self.assertEqual(client.take({"path": p}).allowed, p == "/always")
        with self.assertRaisesRegex(StintError, "unix:/nowhere"):
            Client("unix:/nowhere").take({})
        for wrong in ("unix:", "http+unix://", "unix+http:/x"):
            with self.assertRaises(ValueError):
                Client(wrong)

    def test_idempotency_key(self):
        two, key = {**self.user, "path": "/two"}, self.id()
        answers = [self.client.take(two, idempotency_key=key) for _ in range(3)] + [self.client.wait(two, idempotency_key=key)]
        self.assertEqual([(d.allowed, d.repeated) for d in answers], [(True, False)] + [(True, True)] * 3)
        self.assertEqual(self.client.take(two, cost=0).results[0].remaining, 1)
        answers = [self.client.take(two, cost=2, count_refused=True, idempotency_key=key) for _ in range(2)]
        self.assertEqual([(d.allowed, d.repeated) for d in answers], [(False, False), (False, True)])
        for wrong in ("", " k", "k" * 257, "k\r\nX: y", "ü"):
            for ask in (self.client.take, self.client.wait):
                with self.assertRaisesRegex(ValueError, "idempotency_key"):
                    ask(two, idempotency_key=wrong)

    def test_threads(self):
        allowed = []
        def work():
            with self.client:
                allowed.extend(bool(self.client.take({**self.user, "path": "/fifty"})) for _ in range(20))
        threads = [threading.Thread(target=work) for _ in range(5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((len(allowed), sum(allowed)), (100, 50))

    def test_pool(self):
        """A thread for each call, more threads than connections, and a close in between: never more connections, none lost, none left."""
        client = Client(URL, timeout=120, max_connections=3)
        before = connections(PORT)
        most, wrong, start, rand = [], [], threading.Barrier(24), random.Random(SEED)

        def work(n):
            path = rand.choice(("/always", "/never", "/ten"))
            start.wait()
            try:
                d = client.wait({**self.user, "path": path}, timeout=60) if path == "/ten" else client.take({**self.user, "path": path})
                if [r.name for r in d.results] != [path[1:]]:
                    wrong.append(d)
            except StintError as err:
                wrong.append(err)
            most.append(connections(PORT) - before)
            if n == 7:
                client.close()

        for _ in range(2):
            threads = [threading.Thread(target=work, args=(n,)) for n in range(24)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        self.assertEqual(wrong, [])
        self.assertLessEqual(max(most), 3)
        client.close()
        self.assertEqual(connections(PORT), before)
        for _ in range(5):
            self.assertTrue(client.take({**self.user, "path": "/always"}))
        self.assertEqual(connections(PORT), before + 1, "one call at a time needs one connection")
        client.close()

    def test_pool_is_used_up(self):
        with socket.create_server(("127.0.0.1", 0)) as server, Client(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.2, max_connections=1) as client:
            ended = []

            def hold():
                try:
                    client._call(client._post("/v1/take", {})._replace(timeout=60))
                except StintError as err:
                    ended.append(err)

            holding = threading.Thread(target=hold)
            holding.start()
            connection, _ = server.accept()
            with self.assertRaisesRegex(StintError, "max_connections") as caught:
                client.take({})
            self.assertEqual((caught.exception.status, ended), (0, []))
            connection.close()
            holding.join()
            self.assertEqual(len(ended), 1)
            with self.assertRaisesRegex(StintError, "timed out"):
                client.take({})  # by the place that came back

    def test_exceptions_lose_no_place(self):
        """An exception at any point of a call at which a signal handler may run leaves the whole pool."""

        class Interrupted(Exception):
            pass

        def profile(frame, event, _):  # before and after each function, of Python or C
            if "stint_client" in frame.f_code.co_filename:
                self.steps += 1
                if self.steps == stop:
                    raise Interrupted

        ended = 0
        with Client(URL, max_connections=2) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of a socket that nothing has a name for yet
            for new in (False, True):
                stop, finished = 0, False
                while not finished:
                    client.take({"path": "/always"})
                    if new:
                        client.close()
                    stop, self.steps = stop + 1, 0
                    sys.setprofile(profile)
                    try:
                        client.take({"path": "/always"})
                        finished = True
                    except (Interrupted, StintError):
                        ended += 1
                    finally:
                        sys.setprofile(None)
                    self.assertEqual(len(client._pool._places), 2, f"at step {stop}")
        self.assertGreater(ended, 200)

    def test_fork(self):
        """Decisions are of the request that asked, in the parent and its children, also where exceptions end calls."""

        class Interrupted(Exception):
            pass

        def interrupt(*_):
            raise Interrupted

        def ask(r, interrupts):
            for _ in range(30):
                path = r.choice(("/always", "/never"))
                try:
                    try:
                        if interrupts and r.random() < 0.2:
                            signal.setitimer(signal.ITIMER_REAL, r.uniform(0.00001, 0.003))
                        d = self.client.take({"path": path})
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                    if d.allowed != (path == "/always") or [x.name for x in d.results] != [path[1:]]:
                        return f"{path} was answered with {d}"
                except Interrupted:
                    pass
            return ""

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        for round in range(20):
            self.client.take({"path": "/always"})
            reports = []
            wait, go = os.pipe()
            for n in range(4):
                read, write = os.pipe()
                child = os.fork()
                if child == 0:
                    wrong = "it did not end"
                    os.close(go)
                    try:
                        os.read(wait, 1)
                        wrong = ask(random.Random(SEED + 4 * round + n), n % 2)
                    except BaseException as err:
                        wrong = repr(err)
                    finally:
                        os.write(write, wrong.encode())
                        os._exit(0)
                os.close(write)
                reports.append((child, read))
            os.close(wait)
            os.close(go)
            wrong = [ask(self.random, False)]
            for child, read in reports:
                with os.fdopen(read, "rb") as pipe:
                    wrong.append(pipe.read().decode())
                os.waitpid(child, 0)
            self.assertEqual(wrong, [""] * 5)


class Broken:
    """A server that ends connections at random: before, in the middle of or after a request, or within its answer."""

    def __init__(self, rand):
        self.random, self.read, self.ends = rand, {}, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.accept)
        self.thread.start()

    def accept(self):
        threads = []
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                break
            threads.append(threading.Thread(target=self.serve, args=(connection,)))
            threads[-1].start()
        for t in threads:
            t.join()

    def serve(self, connection):
        with connection, connection.makefile("rb") as stream:
            while True:
                end = self.random.choice(("no", "no", "no", "head", "body", "answer", "after"))
                length, key = 0, None
                line = stream.readline()
                while line not in (b"\r\n", b""):
                    name, value = line.decode().strip().split(": ", 1) if b": " in line else ("", "")
                    if name == "Content-Length":
                        length = int(value)
                    if name == "Idempotency-Key":
                        key = value
                    line = stream.readline()
                if line == b"":
                    return
                if end == "head":
                    self.ends += 1
                    return
                body = stream.read(length)
                call = json.loads(body)["attributes"].get("call", key)
                self.read[call] = self.read.get(call, 0) + 1
                answer = self.answer(key, body)
                if end == "body":
                    self.ends += 1
                    return
                connection.sendall(answer[: 30 if end == "answer" else None])
                if end != "no":
                    self.ends += 1
                    return

    def answer(self, key, body):
        body = b'{"allowed":true,"limits":[],"id":"X","state":"open","reserved":1,"ends":""}'
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


class BrokenService(Broken):
    """The service, behind connections that end at random: also after it has decided, so that its answer is lost."""

    def answer(self, key, body):
        service = HTTPConnection("127.0.0.1", PORT)
        service.request("POST", "/v1/take", body, {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})})
        answer = service.getresponse()
        body = answer.read()
        service.close()
        return b"HTTP/1.1 %d %b\r\nContent-Length: %d\r\n\r\n" % (answer.status, answer.reason.encode(), len(body)) + body


class BrokenServerTest(unittest.TestCase):
    def test_a_take_with_a_key_is_charged_once(self):
        rand, server = random.Random(SEED), BrokenService(random.Random(SEED))
        self.addCleanup(server.close)
        attributes = {"user": f"{self.id()}-{os.getpid()}", "path": "/tokens"}
        used = repeated = 0
        with Client(f"http://127.0.0.1:{server.port}", timeout=120) as client:
            for n in range(100):
                ask, cost = rand.choice((client.take, client.wait)), rand.randint(1, 5)
                d = ask(attributes, cost, idempotency_key=f"{self.id()} {n}")
                used += cost
                repeated += d.repeated
                self.assertTrue(d)
        with Client(URL) as client:
            self.assertEqual(1000 - client.take(attributes, cost=0).results[0].remaining, used)
        self.assertEqual(len(server.read), 100)
        self.assertGreater(repeated, 10)

    def test_a_call_that_never_gets_an_answer(self):
        """A call with a key is sent again until its timeout is over, not longer; not at all where no connection is made."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            asked = []

            def serve():
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    with connection:
                        asked.append(connection.recv(65536))

            thread = threading.Thread(target=serve)
            thread.start()
            with Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5) as client:
                with self.assertRaisesRegex(StintError, "no answer") as caught:
                    client.take({}, idempotency_key="k")
                self.assertEqual(caught.exception.status, 0)
                with self.assertRaisesRegex(StintError, "no answer"):
                    client.take({})
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
        holds = [float(request.partition(b"wait=")[2].partition(b"\r\n")[0]) for request in asked if b"\r\nIdempotency-Key: k\r\n" in request]
        self.assertEqual(holds, sorted(holds, reverse=True), "the answer may be held back for less each time")
        self.assertLessEqual(len(asked), len(holds) + 1, "without a key it is sent once")
        slept = []
        with Client("http://127.0.0.1:2", timeout=60) as client, mock.patch("time.sleep", slept.append):
            with self.assertRaisesRegex(StintError, "no answer"):
                client.take({}, idempotency_key="k")
        self.assertEqual(slept, [])

    def test_nothing_is_charged_twice(self):
        server = Broken(random.Random(SEED))
        self.addCleanup(server.close)
        answered, failed = set(), set()
        with Client(f"http://127.0.0.1:{server.port}", timeout=5) as client:
            for n in range(300):
                call = str(n)
                try:
                    client.take({"call": call}, cost=100)
                    answered.add(call)
                except StintError as err:
                    self.assertIn(err.status, (0, 200))  # 200: the answer broke off within its header
                    failed.add(call)
        self.assertEqual([call for call, n in server.read.items() if n > 1], [], "a take that was read is not sent again")
        self.assertLessEqual(answered, set(server.read))
        self.assertLessEqual(len(failed), server.ends)
        self.assertGreater(len(failed), 20)


class Odd(BaseHTTPRequestHandler):
    """A server that is not stint: it closes each connection after its answer without saying so, or answers with a page."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.do_GET()

    def do_GET(self):
        body = self.server.body
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def finish(self):
        super().finish()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.server.ended.release()

    def log_message(self, *_):
        pass


class OddServerTest(unittest.TestCase):
    def setUp(self):
        self.server = HTTPServer(("127.0.0.1", 0), Odd)
        self.server.ended = threading.Semaphore(0)
        self.addCleanup(self.server.server_close)
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.shutdown)
        self.client = Client(f"http://127.0.0.1:{self.server.server_port}", timeout=5)
        self.addCleanup(self.client.close)

    def test_kept_connection_ends(self):
        self.server.status, self.server.body = 200, b'{"allowed":true,"limits":[],"new_field":1}'
        for _ in range(3):
            self.assertTrue(self.client.take({}))
            self.server.ended.acquire(timeout=60)  # the end of an idle connection is seen before the next call

    def test_what_is_sent(self):
        self.server.status, self.server.body = 200, b'{"id":"X","state":"open","reserved":1,"ends":""}'
        r = self.client.reserve({"a": "b"}, ttl=1.5, declared=7, charge_expired=True)
        self.assertEqual(self.server.asked, {"attributes": {"a": "b"}, "ttl": "1.5s", "declared": 7, "charge_expired": True})
        self.server.ended.acquire(timeout=60)
        r.renew(3, ttl=2)
        self.assertEqual(self.server.asked, {"id": "X", "used": 3, "ttl": "2s"})

    def test_incomplete_usage(self):
        self.server.status, self.server.body = 200, b'{"usage":[{"limit":"l"}],"incomplete":["n2"]}'
        rows = self.client.usage()
        self.assertEqual((rows, rows.incomplete), ([{"limit": "l"}], ["n2"]))

    def test_release_fails(self):
        for error in (StintError, ZeroDivisionError):
            self.server.status, self.server.body = 200, b'{"id":"X","state":"open","reserved":1,"ends":""}'
            with self.assertRaises(error):
                with self.client.reserving({}):
                    self.server.ended.acquire(timeout=60)
                    self.server.status = 503
                    1 / (error is StintError)
            self.server.ended.acquire(timeout=60)

    def test_no_answer_of_stint(self):
        for status, body in ((429, b"<html>"), (502, b""), (200, b"<html>"), (200, b"[1]"), (503, b'{"detail":"down"}'), (429, b"null"), (200, b"{}"), (204, b"")):
            self.server.status, self.server.body = status, body
            with self.assertRaises(StintError) as caught:
                self.client.take({})
            self.assertNotIsInstance(caught.exception, Refused)
            self.assertEqual(caught.exception.status, status)
            self.server.ended.acquire(timeout=60)


if __name__ == "__main__":
    unittest.main()
