"""Django in one file, under ASGI: guarded views, and a chat whose answers outlive their connections.

    uvicorn django_app:app
    curl -N --json '{"text": "Tell me a story"}' localhost:8000/chat
    curl -N --json '{"text": "Tell me a story"}' localhost:8000/plain
    curl -N --json '{"text": "Tell me a story"}' localhost:8000/chats/seven
    curl -N 'localhost:8000/streams?name=ann:seven' -H 'x-user: ann'        # a reloaded page, from the start
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest
from django.urls import path

from streamguard import Detach, SourceFailed
from streamguard.adapters.django import StreamGuard, guarded
from streamguard.log.memory import MemoryLog

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=["django.middleware.gzip.GZipMiddleware"])


async def generate(text: str) -> AsyncIterator[str]:
    for word in text.split():
        await asyncio.sleep(0)  # the next token is computed
        if word == "break":
            raise SourceFailed("model_broke", "the model broke", retryable=True)
        yield word + " "


def who(request: HttpRequest, action: str) -> str | None:
    return request.headers.get("x-user", "ann")  # request.user, in an application; None is no


guard = StreamGuard(MemoryLog(), authorize=who, on_disconnect=Detach(grace=60))


@guarded
async def chat(request: HttpRequest) -> AsyncIterator[str]:
    return generate(json.loads(request.body)["text"])


@guarded
def plain(request: HttpRequest) -> Iterator[str]:
    words = json.loads(request.body)["text"].split()  # here, where what is wrong with it has an HTTP status
    return (word + " " for word in words)


@guard.stream(name=lambda request: f"ann:{request.resolver_match.kwargs['chat']}")
async def lasting(request: HttpRequest, chat: str) -> AsyncIterator[str]:
    return generate(json.loads(request.body)["text"])


urlpatterns = [path("chat", chat), path("plain", plain), path("chats/<chat>", lasting)]
guard.install(urlpatterns, "/streams")

app = guard.seal(get_asgi_application())
