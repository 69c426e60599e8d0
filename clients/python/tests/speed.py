"""Time of one take at a time on one kept connection, beside http.client that sends the same bytes, and redis-py where it is installed.

Prints for each the median in microseconds, and its ratio to http.client: rounds alternate, so that all see the same machine.
STINT_URL is the service, over TCP or a unix socket; STINT_REDIS, if set, its port for clients of Redis.
"""

import asyncio
import http.client
import os
import socket
import statistics
import sys
import time

from stint_client import AsyncClient, Client
from stint_client._wire import Call, Service

rounds, calls = int(sys.argv[1]), int(sys.argv[2])
url = os.environ["STINT_URL"]
attributes = {"path": "/always", "user": "speed"}


class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(service.socket_path)


def times(f):
    taken = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        f()
        taken.append(time.perf_counter_ns() - begin)
    return statistics.median(taken) / 1000


client = Client(url)
service = Service(url, None)
call = client._take(attributes, 1, False)
head, body = service.bytes(call).split(b"\r\n\r\n")
fields = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
bare = Unix("localhost", timeout=10) if service.socket_path else http.client.HTTPConnection(service.host, service.port, timeout=10)


def plain():
    bare.putrequest("POST", "/v1/take", skip_host=True, skip_accept_encoding=True)
    for name, value in fields.items():
        bare.putheader(name, value)
    bare.endheaders(body)
    answer = bare.getresponse()
    assert b'"allowed":true' in answer.read()


def take():
    assert client.take(attributes)


each = {"http.client": plain, "Client.take": take}
if os.environ.get("STINT_REDIS"):
    import redis

    r = redis.Redis(port=int(os.environ["STINT_REDIS"]))
    each["redis-py CL.THROTTLE"] = lambda: r.execute_command("CL.THROTTLE", "always", 1000000, 1000000, 1)


async def asynchronous(client):
    taken = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        assert await client.take(attributes)
        taken.append(time.perf_counter_ns() - begin)
    return statistics.median(taken) / 1000


async def echo(reader, writer, request):
    taken = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert b'"allowed":true' in await reader.readexactly(length)
        taken.append(time.perf_counter_ns() - begin)
    return statistics.median(taken) / 1000


medians = {name: [] for name in [*each, "AsyncClient.take", "asyncio streams"]}


async def main():
    async with AsyncClient(url) as aclient:
        reader, writer = await (asyncio.open_unix_connection(service.socket_path) if service.socket_path else asyncio.open_connection(service.host, service.port))
        for _ in range(rounds):
            for name, f in each.items():
                medians[name].append(times(f))
            medians["AsyncClient.take"].append(await asynchronous(aclient))
            medians["asyncio streams"].append(await echo(reader, writer, service.bytes(call)))
        writer.close()


asyncio.run(main())
base = statistics.median(medians["http.client"])
for name, all_of in medians.items():
    print(f"{name}: {statistics.median(all_of):.1f} us, {statistics.median(all_of) / base:.2f}")
