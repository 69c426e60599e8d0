"""Tasks with limits. The client has asked before the pool of the worker forks."""

import os
import time

from celery import Celery
from stint_client import Client
from stint_client.celery import StintTask

app = Celery("tests", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True, task_serializer="json", result_expires=600)
stint = Client(os.environ["STINT_URL"], timeout=60, max_connections=3)
stint.take({"path": "/always"})


@app.task
def who(user):
    return stint.explain({"path": "/fifty", "user": user})["limits"][0]["key"], os.getpid()


@app.task(base=StintTask, limit_client=stint, limit_attributes=lambda self, user: {"path": "/ten", "user": user}, bind=True, max_retries=0)
def limited(self, user):
    return time.time(), self.request.retries, self.name


@app.task(base=StintTask, limit_client=stint, limit_attributes=lambda self, user: {"path": "/never", "user": user})
def hopeless(user):
    return "it ran"


@app.task(base=StintTask, limit_client=stint, limit_attributes=lambda self, user: {"path": "/job", "user": user})
def alone(user):
    return "it ran"
