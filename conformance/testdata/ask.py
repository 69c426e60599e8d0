"""Reads queries as lines of JSON, asks by the Python client, and writes replies as lines of JSON."""

import json
import sys

from stint_client import Client, StintError


def shown(decision, reservation=None):
    out = {
        "allowed": decision.allowed, "status": decision.status, "reason": decision.reason, "remaining": -1,
        "retry": decision.retry_after, "location": decision.location, "permit": decision.permit or 0,
        "tag": next(iter(decision.tags.values()), ""),
        "body": getattr(decision, "body", "") or "", "content_type": getattr(decision, "content_type", "") or "",
        "field": (getattr(decision, "headers", None) or {}).get("X-Reason", ""),
        "warning": ", ".join(getattr(decision, "warnings", ())),
    }
    results = [r for r in decision.results if not r.raw.get("shadow")]
    if results:
        tightest = min(results, key=lambda r: r.remaining)
        out["limit"], out["remaining"] = tightest.name, tightest.remaining
    if decision.violated:
        out["limit"] = decision.violated[0]
    if reservation is not None:
        out["id"] = reservation.id
    return out


def answer(client, reservations, message):
    do, attributes = message["do"], message["attributes"]
    if do == "take":
        return shown(client.take(attributes, message["cost"]))
    if do == "reserve":
        reservation = client.reserve(attributes, message["cost"], ttl=60)
        reservations[reservation.id] = reservation
        return shown(reservation.decision, reservation)
    if do == "finish":
        client.finish(attributes, message["permit"])
    elif do == "release":
        reservations[message["id"]].release()
    elif do == "commit":
        reservations[message["id"]].commit(1)
    return {}


def main():
    reservations = {}
    with Client(sys.argv[1], timeout=30) as client:
        for line in sys.stdin:
            try:
                out = answer(client, reservations, json.loads(line))
            except StintError as err:
                out = {"error": str(err)}
            print(json.dumps(out), flush=True)


main()
