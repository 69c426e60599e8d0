"""An application of Flask with limits, whose client has asked before a server forks."""

import os

from flask import Flask, request
from stint_client import Client
from stint_client.flask import Stint

client = Client(os.environ["STINT_URL"], timeout=60, max_connections=3)
client.take({"path": "/always"})
app = Flask(__name__)
Stint(app, client=client, attributes=lambda r: {"user": r.headers.get("X-User", "")})


@app.get("/who/<user>")
def who(user):
    return {"key": client.explain({"path": "/fifty", "user": user})["limits"][0]["key"], "process": os.getpid()}


@app.route("/<path:rest>")
def any_path(rest):
    if rest == "raise":
        1 / 0
    return {"degraded": request.headers.get("X-RateLimit-Degraded")}
