"""An application of Django with limits, for WSGI and ASGI, with views of both kinds."""

import os

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path

from stint_client import AsyncClient, Client

options = {"timeout": 60, "max_connections": 3}


def attributes(request):
    return {"user": request.headers.get("X-User", "")}


settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["stint_client.django.StintMiddleware"],
    STINT={"URL": os.environ["STINT_URL"], "TIMEOUT": 60, "MAX_CONNECTIONS": 3, "ATTRIBUTES": "django_app.attributes"},
)
client, aclient = Client(os.environ["STINT_URL"], **options), AsyncClient(os.environ["STINT_URL"], **options)
client.take({"path": "/always"})


def who(request, user):
    return JsonResponse({"key": client.explain({"path": "/fifty", "user": user})["limits"][0]["key"], "process": os.getpid()})


async def awho(request, user):
    return JsonResponse({"key": (await aclient.explain({"path": "/fifty", "user": user}))["limits"][0]["key"], "process": os.getpid()})


def any_path(request, rest):
    if rest == "raise":
        1 / 0
    return JsonResponse({"degraded": request.headers.get("X-RateLimit-Degraded")})


asynchronous = os.environ.get("DJANGO_ASYNC")
urlpatterns = [path("who/<user>", awho if asynchronous else who), path("<path:rest>", any_path)]
app = get_asgi_application() if asynchronous else get_wsgi_application()
