"""The client against a real service: STINT_URL is one with ../limits.yaml, STINT_AUTH_URL one that asks for STINT_TOKEN."""

import json
import os
import threading
import unittest
from http.server import BaseHTTPRequestHandler, HTTPServer

from stint_client import Client, Refused, StintError

URL = os.environ["STINT_URL"]


class ClientTest(unittest.TestCase):
    def setUp(self):
        self.client = Client(URL)
        self.addCleanup(self.client.close)
        self.user = {"user": f"{self.id()}-{os.getpid()}"}  # each test has counters of its own

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
        self.assertEqual((d.violated, d.reason, d.status, d.results), (("two",), "rate_exceeded", 403, ()))
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

    def test_permit(self):
        job = {**self.user, "path": "/job"}
        d = self.client.take(job)
        self.assertIsInstance(d.permit, int)
        self.assertEqual(self.client.take(job).reason, "concurrency_exceeded")
        self.client.finish(job, d.permit)
        self.assertTrue(self.client.take(job))

    def test_wait(self):
        slept = []
        second = {**self.user, "path": "/second"}
        self.client.wait(second)
        self.assertTrue(self.client.wait(second, sleep=lambda s: (slept.append(s), threading.Event().wait(s))))
        self.assertEqual(slept[0], 1, "what retry_after says")
        self.client.take({**self.user, "path": "/two"}, cost=2)
        with self.assertRaises(Refused) as caught:
            self.client.wait({**self.user, "path": "/two"}, timeout=1, sleep=self.fail)
        self.assertEqual((caught.exception.decision.violated, caught.exception.status), (("two",), 403))
        with self.assertRaisesRegex(Refused, "no wait helps"):
            self.client.wait({**self.user, "path": "/two"}, cost=3, sleep=self.fail)

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
        with self.assertRaises(Refused) as caught:
            self.client.reserving(attributes, 900)
        self.assertEqual(caught.exception.decision.reason, "rate_exceeded")

    def test_explain_and_usage(self):
        self.client.take({**self.user, "path": "/two"})
        x = self.client.explain({**self.user, "path": "/two"}, cost=2)
        self.assertEqual((x["allowed"], x["limits"][0]["used"]), (False, 1))
        rows = self.client.usage(key="user=" + self.user["user"], limit="two", by="total", from_="2020-01")
        self.assertEqual([(row["limit"], row["used"]) for row in rows], [("two", 1)])

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


class Odd(BaseHTTPRequestHandler):
    """A server that is not stint: it closes each connection after its answer without saying so, or answers with a page."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = self.server.body
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_):
        pass


class OddServerTest(unittest.TestCase):
    def setUp(self):
        self.server = HTTPServer(("127.0.0.1", 0), Odd)
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

    def test_what_is_sent(self):
        self.server.status, self.server.body = 200, b'{"id":"X","state":"open","reserved":1,"ends":""}'
        r = self.client.reserve({"a": "b"}, ttl=1.5, declared=7, charge_expired=True)
        self.assertEqual(self.server.asked, {"attributes": {"a": "b"}, "ttl": "1.5s", "declared": 7, "charge_expired": True})
        r.renew(3, ttl=2)
        self.assertEqual(self.server.asked, {"id": "X", "used": 3, "ttl": "2s"})

    def test_release_fails(self):
        for error in (StintError, ZeroDivisionError):
            self.server.status, self.server.body = 200, b'{"id":"X","state":"open","reserved":1,"ends":""}'
            with self.assertRaises(error):
                with self.client.reserving({}):
                    self.server.status = 503
                    1 / (error is StintError)

    def test_no_answer_of_stint(self):
        for status, body in ((429, b"<html>"), (502, b""), (200, b"<html>"), (200, b"[1]"), (503, b'{"detail":"down"}'), (429, b"null"), (200, b"{}"), (204, b"")):
            self.server.status, self.server.body = status, body
            with self.assertRaises(StintError) as caught:
                self.client.take({})
            self.assertNotIsInstance(caught.exception, Refused)
            self.assertEqual(caught.exception.status, status)


if __name__ == "__main__":
    unittest.main()
