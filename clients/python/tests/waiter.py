"""One process of TestWaitIsFair: waits for permits of /PATH for SECONDS, once stdin ends, and prints how many it got and its calls."""

import os
import sys
import time

from stint_client import Client, Refused

calls = 0


class Counting(Client):
    def _call(self, call):
        global calls
        calls += 1
        return super()._call(call)


path, user, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
got = 0
with Counting(os.environ["STINT_URL"]) as client:
    client.take({"path": path, "user": user}, cost=0)
    print("ready", flush=True)
    sys.stdin.read()
    calls, end = 0, time.monotonic() + seconds
    try:
        while True:
            client.wait({"path": path, "user": user}, timeout=end - time.monotonic())
            got += 1
    except Refused:
        print(got, calls)
