"""A thin client of stint's HTTP API, with the standard library alone.

It asks, and does not decide: each call is one request to the service. A refusal is an answer, a
Decision whose ``allowed`` is False; only what is no answer is raised, as a StintError. Leases, by which
a process decides without asking, are not in it.

Client is for threads and greenlets, AsyncClient for asyncio. The modules asgi, django, flask and celery ask before
requests and tasks of these frameworks.
"""

from ._asyncio import AsyncClient, AsyncReservation
from ._sync import Client, Reservation
from ._wire import Decision, Refused, Response, Result, StintError, UsageRows

__all__ = ["AsyncClient", "AsyncReservation", "Client", "Decision", "Refused", "Reservation", "Response", "Result", "StintError", "UsageRows"]
