"""Flask: a guarded view, and a chat whose answers outlive their connections.

    gunicorn -k gthread --threads 100 flask_app:app
    curl -N --json '{"text": "Tell me a story"}' localhost:8000/chat
    curl -N --json '{"text": "Tell me a story"}' localhost:8000/chats/seven
    curl -N 'localhost:8000/streams?name=ann:seven' -H 'x-user: ann'        # a reloaded page, from the start
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import Flask, Request, request

from streamguard import Detach, SourceFailed
from streamguard.adapters.flask import StreamGuard, guarded
from streamguard.log.memory import MemoryLog


def generate(text: str) -> Iterator[str]:
    for word in text.split():
        if word == "break":
            raise SourceFailed("model_broke", "the model broke", retryable=True)
        yield word + " "


def who(request: Request, action: str) -> str | None:
    return request.headers.get("x-user", "ann")  # an application's session, or token; None is no


app = Flask(__name__)
guard = StreamGuard(MemoryLog(), authorize=who, on_disconnect=Detach(grace=60))


@app.post("/chat")
@guarded
def chat() -> Iterator[str]:
    return generate(request.json["text"])


@app.post("/chats/<chat>")
@guard.stream(name=lambda request: f"ann:{request.view_args['chat']}")
def lasting(chat: str) -> Iterator[str]:
    return generate(request.json["text"])


guard.install(app, "/streams")
