"""Limits of tasks of Celery. A task that is refused goes back to the broker until retry_after, so no worker waits.

::

    from stint_client import Client
    from stint_client.celery import StintTask

    stint = Client("http://127.0.0.1:8080", timeout=2)

    @app.task(base=StintTask, limit_client=stint)
    def charge(customer): ...
"""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Mapping, Optional

from celery import Task
from celery.exceptions import Reject, Retry

from . import Client, Refused, StintError
from ._web import OnError

__all__ = ["StintTask"]


class StintTask(Task):  # type: ignore[misc,type-arg,unused-ignore]
    """A base of tasks that take before they run.

    ``limit_client`` is the client. ``limit_attributes`` returns what the task is by its arguments, {"task": its name} by default.
    ``limit_on_error`` says what becomes of a task without a decision: "reject" tries again after a second, "allow" runs it.
    A refusal that no wait helps fails the task with Refused. Being held back does not count as a retry of the task.
    """

    abstract = True
    limit_client: Optional[Client] = None
    limit_on_error: OnError = "reject"

    def limit_attributes(self, *args: Any, **kwargs: Any) -> Mapping[str, str]:
        return {"task": self.name or ""}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        client = self.limit_client
        if client is None:
            raise TypeError(f"task {self.name} has no client: give limit_client=Client(...) to its decorator")
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        attributes = self.limit_attributes(*args, **kwargs)
        permit: Optional[int] = None
        try:
            decision = client.wait(attributes) if self.request.is_eager else client.take(attributes)
            if not decision:
                if decision.retry_after is None:
                    raise Refused(decision, f"refused, and no wait helps: {decision.detail}")
                raise self._held_back(decision.retry_after + random.uniform(0, min(decision.retry_after / 10, 1)))
            permit = decision.permit
            if decision.delay > 0 and not self.request.is_eager:
                time.sleep(decision.delay)
        except Refused:
            raise
        except StintError:
            if self.limit_on_error != "allow":
                raise self._held_back(1)
        try:
            return self.run(*args, **kwargs)
        finally:
            if permit is not None:
                try:
                    client.finish(attributes, permit)
                except StintError:
                    pass  # it ends by itself

    def _held_back(self, seconds: float) -> Exception:
        """Send the task again, and return what ends this run. Task.retry would count it, and so fail a task that retries itself."""
        again = self.signature_from_request(self.request, countdown=seconds, retries=self.request.retries)
        try:
            again.apply_async()
        except Exception as err:
            return Reject(err, requeue=True)
        return Retry(when=datetime.now(timezone.utc) + timedelta(seconds=seconds), sig=again)
