"""The client within each framework and server, as a user runs them: STINT_URL is a service with ../../../limits.yaml.

STINT_REQUESTS is how many requests each gets, 200 by default. With 10,000 and more the delay of the event loop is held to
what a quiet machine does, too.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from connections import connections  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
URL = os.environ["STINT_URL"]
PORT = int(URL.rpartition(":")[2])
REQUESTS = int(os.environ.get("STINT_REQUESTS", "200"))
PATIENCE = 120  # bounds each wait, on a machine that is busy with other tests


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Process:
    """A server, until the end of a with statement."""

    def __init__(self, *command, **environment):
        self.log = tempfile.TemporaryFile("w+")
        paths = os.pathsep.join([HERE, os.path.abspath(os.path.join(HERE, "../../src"))])
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment, start_new_session=True)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def until(self, ready, what):
        end = time.monotonic() + PATIENCE
        while not ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{what}, not so:\n{self.text()}")
            time.sleep(0.02)

    def processes(self):
        """The process and its children."""
        found, new = set(), {self.process.pid}
        while new:
            found |= new
            parents, new = new, set()
            for p in parents:
                try:
                    with open(f"/proc/{p}/task/{p}/children") as children:
                        new |= {int(c) for c in children.read().split()}
                except OSError:
                    pass  # it has ended
        return found

    def most_connections(self):
        most = 0
        for p in self.processes():
            try:
                most = max(most, connections(PORT, p))
            except OSError:
                pass  # it has ended
        return most

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        finally:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.log.close()


class Server(Process):
    def __init__(self, *command, **environment):
        self.port = free_port()
        super().__init__(*(c.replace("PORT", str(self.port)) for c in command), **environment)

    def get(self, path, user="", **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            c.request("GET", path, headers={"X-User": user, **headers})
            r = c.getresponse()
            return r.status, {name.lower(): value for name, value in r.getheaders()}, r.read().decode()
        finally:
            c.close()

    def __enter__(self):
        try:
            self.until(self.listens, "the server should listen")
        except BaseException:
            self.__exit__()
            raise
        return self

    def listens(self):
        try:
            return self.get("/who/ready")[0] < 500
        except OSError:
            return False


def gunicorn(app, *options):
    return [sys.executable, "-m", "gunicorn", app, "-b", "127.0.0.1:PORT", "--timeout", str(PATIENCE), *options]


def uvicorn(app, *options):
    return [sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", "PORT", "--log-level", "warning", *options]


class FrameworksTest(unittest.TestCase):
    maxDiff = None

    def check(self, server, workers, processes=1):
        """Each answer is of the request that asked, with at most as many connections in a process as the pool has."""
        seen, most, done = set(), [0], threading.Event()

        def count():
            while not done.is_set():
                most.append(server.most_connections())
                done.wait(0.1)

        counting = threading.Thread(target=count)
        counting.start()

        def ask(n):
            status, _, body = server.get(f"/who/u{n}", f"u{n}")
            answer = json.loads(body) if status == 200 else {"key": (status, body), "process": 0}
            seen.add(answer["process"])
            return answer["key"]

        try:
            with ThreadPoolExecutor(workers) as all_of:
                answers = list(all_of.map(ask, range(REQUESTS)))
        finally:
            done.set()
            counting.join()
        foreign = [(n, a) for n, a in enumerate(answers) if a != {"user": f"u{n}"}]
        self.assertEqual(foreign[:5], [], server.text())
        self.assertLessEqual(max(most), 3 * self.pools, "connections of a process to the service")
        self.assertLessEqual(processes, len(seen))

    pools = 1  # how many clients the application has

    def check_answers(self, server):
        """What limits ask for arrives at the client of the application."""
        user = f"{self.id()}-{server.port}"
        status, headers, _ = server.get("/two", user)
        self.assertEqual((status, headers.get("ratelimit-policy")), (200, '"two";q=2;w=3600'))
        self.assertEqual(server.get("//x/..//two", user)[0], 200)
        status, headers, body = server.get("/two", user)
        self.assertEqual((status, headers["content-type"], json.loads(body)["violated-policies"]), (403, "application/problem+json", ["two"]))
        self.assertTrue(0 < int(headers["retry-after"]) <= 3600 and headers["ratelimit"].startswith('"two";r=0'), headers)
        for want in (200, 302):
            status, headers, _ = server.get("/away", user)
            self.assertEqual((status, headers.get("location")), (want, "https://example.com/busy" if want == 302 else None))
        for want in (200, 200, 503):
            status, headers, body = server.get("/own", user)
            self.assertEqual(status, want)
        self.assertEqual((body, headers["content-type"], headers["x-reason"]), ("<p>ü</p>", "text/html", "quota"))
        for want in (None, "tag"):
            self.assertEqual(json.loads(server.get("/tag", user, **{"X-RateLimit-Degraded": "forged"})[2]), {"degraded": want})
        for path in ("/job", "/raise", "/job"):  # the permit comes back, also after an error
            status = server.get("/job" if path == "/job" else path, user)[0]
            end = time.monotonic() + PATIENCE
            while status == 429 and time.monotonic() < end:  # given back after the answer was sent
                status = server.get(path, user)[0]
            self.assertEqual(status, 500 if path == "/raise" else 200)

    def test_flask_gunicorn_sync(self):
        with Server(*gunicorn("flask_app:app", "-k", "sync", "-w", "3", "--preload")) as server:
            self.check_answers(server)
            self.check(server, 6, processes=2)

    def test_flask_gunicorn_gthread(self):
        with Server(*gunicorn("flask_app:app", "-k", "gthread", "-w", "2", "--threads", "8", "--preload")) as server:
            self.check_answers(server)
            self.check(server, 16, processes=2)

    def test_flask_gunicorn_gevent(self):
        for preload in ([], ["--preload"]):
            with self.subTest(preload=preload), Server(*gunicorn("flask_app:app", "-k", "gevent", "-w", "2", *preload)) as server:
                self.check_answers(server)
                self.check(server, 32, processes=2)

    def test_how_to(self):
        """The programs of the how-to guide run."""
        with open(os.path.join(HERE, "../../../../docs/how-to/ask-from-python-or-typescript.md")) as page, tempfile.TemporaryDirectory() as folder:
            programs = dict(re.findall(r"cat >(\w+)_app\.py <<'EOF'\n(.*?)\nEOF\n", page.read(), re.DOTALL))
            for name, text in programs.items():
                with open(os.path.join(folder, f"page_{name}.py"), "w") as file:
                    file.write(text.replace("http://127.0.0.1:8080", URL))
            self.assertEqual(sorted(programs), ["celery", "fastapi", "flask"])
            for command in (uvicorn("page_fastapi:app", "--app-dir", folder), gunicorn("page_flask:app", "--chdir", folder)):
                with Server(*command) as server:
                    self.assertEqual((server.get("/api/orders")[0], server.get("/never")[0]), (200, 429), server.text())
            sys.path.insert(0, folder)
            from page_celery import charge

            self.assertEqual(charge.apply(("u6",)).get(), "charged u6")

    def test_flask_development_server(self):
        with Server(sys.executable, "-m", "flask", "--app", "flask_app", "run", "--port", "PORT") as server:
            self.check(server, 8)

    def test_django_wsgi(self):
        self.pools = 2
        with Server(*gunicorn("django_app:app", "-k", "gthread", "-w", "2", "--threads", "8", "--preload")) as server:
            self.check_answers(server)
            self.check(server, 16, processes=2)

    def test_django_asgi(self):
        self.pools = 3
        with Server(*uvicorn("django_app:app", "--workers", "2"), DJANGO_ASYNC="yes") as server:
            self.check_answers(server)
            self.check(server, 16)

    def test_fastapi(self):
        with Server(*uvicorn("fastapi_app:app", "--workers", "2")) as server:
            self.check_answers(server)
            self.check(server, 16)

    def test_websocket(self):
        with Server(*uvicorn("fastapi_app:app")) as server:
            def upgrade(path):
                return server.get(path, Connection="Upgrade", Upgrade="websocket", **{"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="})

            if upgrade("/always")[0] != 101:
                self.fail(f"websockets are not there:\n{server.text()}")
            status, _, body = upgrade("/never")
            self.assertEqual((status, json.loads(body)["violated-policies"]), (429, ["never"]))

    def test_event_loop(self):
        """Others are served while some wait for their turn, and a call keeps the event loop no longer than a request without one."""
        with Server(*uvicorn("fastapi_app:app")) as server, ThreadPoolExecutor(16) as all_of:
            user = f"{self.id()}-{os.getpid()}"
            waiting = [all_of.submit(server.get, f"/free/wait/{user}") for _ in range(3)]
            pings = 0
            while not all(one.done() for one in waiting):  # any of them may be the first
                self.assertEqual(server.get("/free/ping")[0], 200)
                pings += 1
            self.assertGreater(pings, 20)
            figures = {}
            for kind, path in (("without", "/free/who/u"), ("with", "/who/u")) * 2:
                server.get("/free/delays")
                list(all_of.map(lambda n: server.get(path + str(n)), range(REQUESTS)))
                figures[kind] = json.loads(server.get("/free/delays")[2])
            p99 = {kind: {what: values[int(len(values) * 0.99)] for what, values in f.items()} for kind, f in figures.items()}
            print("event loop, 99th percentile in ms:", {k: {w: round(v * 1000, 2) for w, v in f.items()} for k, f in p99.items()}, file=sys.stderr)
            self.assertLess(p99["with"]["busy"] - p99["without"]["busy"], 0.010)
            if REQUESTS >= 10000:
                self.assertLess(p99["with"]["late"] - p99["without"]["late"], 0.010)

    def test_celery(self):
        port = free_port()
        broker = f"redis://127.0.0.1:{port}/0"
        with Process("redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1") as redis_server:
            redis_server.until(lambda: "eady to accept" in redis_server.text(), "Redis should be ready")
            os.environ["BROKER"] = broker
            worker = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-P", "prefork", "-c", "4", "--without-gossip", "--without-mingle", "-l", "INFO"]
            with Process(*worker, BROKER=broker) as w:
                sys.path.insert(0, HERE)
                import celery_app

                w.until(lambda: " ready." in w.text(), "the worker should be ready")
                user = f"{self.id()}-{os.getpid()}"
                results = [celery_app.who.delay(f"u{n}") for n in range(REQUESTS)]
                answers = [r.get(PATIENCE) for r in results]
                foreign = [(n, a) for n, (a, _) in enumerate(answers) if a != {"user": f"u{n}"}]
                self.assertEqual(foreign[:5], [])
                self.assertGreater(len({process for _, process in answers}), 1)
                self.assertLessEqual(w.most_connections(), 3)
                runs = sorted(r.get(PATIENCE) for r in [celery_app.limited.delay(user) for _ in range(12)])
                self.assertEqual({(retries, name) for _, retries, name in runs}, {(0, "celery_app.limited")}, "no retry is counted")
                self.assertGreater(runs[-1][0] - runs[0][0], 0.9, "12 at 10/s with a burst of 1")
                with self.assertRaisesRegex(Exception, "no wait helps"):
                    celery_app.hopeless.delay(user).get(PATIENCE)
                for _ in range(2):
                    self.assertEqual(celery_app.alone.delay(user).get(PATIENCE), "it ran")
                self.assertEqual(celery_app.limited(user)[2], "celery_app.limited", "a plain call takes nothing")
                celery_app.stint.close()
                celery_app.app.close()


if __name__ == "__main__":
    unittest.main()
