"""An application of FastAPI with limits. /delays says by how much its event loop was late, and what kept it."""

import asyncio
import os
import time
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, WebSocket
from stint_client import AsyncClient
from stint_client.asgi import StintMiddleware

client = AsyncClient(os.environ["STINT_URL"], timeout=60, max_connections=3)
late, busy = [], []


async def watch():
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(0.002)
        late.append(time.perf_counter() - begin - 0.002)


def measured(run):
    def runs(handle):
        begin = time.thread_time()
        run(handle)
        busy.append(time.thread_time() - begin)

    return runs


asyncio.events.Handle._run = measured(asyncio.events.Handle._run)


@asynccontextmanager
async def lifespan(app):
    watching = asyncio.create_task(watch())
    async with client:
        yield
    watching.cancel()


app = FastAPI(lifespan=lifespan)


async def user_of(scope):
    return {"user": Request(scope).headers.get("X-User", "")} if scope["type"] == "http" else {}


def limited(inner):
    with_limits = StintMiddleware(inner, client, attributes=user_of)

    async def serve(scope, receive, send):
        # What measures the loop is left alone.
        free = scope["type"] != "lifespan" and scope["path"].startswith("/free/")
        await (inner if free else with_limits)(scope, receive, send)

    return serve


app.add_middleware(limited)


@app.get("/free/delays")
async def delays():
    result = {"late": sorted(late), "busy": sorted(busy)}
    late.clear()
    busy.clear()
    return result


@app.get("/free/ping")
async def ping():
    return "pong"


@app.get("/free/wait/{user}")
async def wait(user: str):
    await client.wait({"path": "/second", "user": user})


@app.get("/who/{user}")
async def who(user: str):
    return {"key": (await client.explain({"path": "/fifty", "user": user}))["limits"][0]["key"], "process": os.getpid()}


@app.get("/free/who/{user}")
async def plain(user: str):
    return {"key": {"user": user}, "process": os.getpid()}


@app.websocket("/{rest:path}")
async def chat(websocket: WebSocket, rest: str):
    await websocket.accept()
    await websocket.send_text(rest)
    await websocket.close()


@app.get("/{rest:path}")
async def any_path(request: Request, rest: str):
    if rest == "raise":
        1 / 0
    return {"degraded": request.headers.get("X-RateLimit-Degraded")}
