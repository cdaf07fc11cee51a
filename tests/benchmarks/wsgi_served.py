"""What a stream costs where applications run on threads, and Django: a guarded view beside a bare one.

As `served`, whose readers and counts these are: the bare view sends as many bytes a token as the guarded one, one part
a token, and does nothing else. The model is a generator that sleeps; on gunicorn each stream has one
thread of the server's, and there are fewer of them than there are of tasks. `inline` is guarded with
`own_thread=False`: there the generator has no thread of its own.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import django
import flask
from django.conf import settings
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path

from streamguard.adapters.django import GuardedResponse as DjangoResponse
from streamguard.adapters.django import SealMiddleware
from streamguard.adapters.flask import guarded as flask_guarded
from streamguard.adapters.wsgi import GuardedResponse as WsgiResponse
from tests.benchmarks.load import stamp
from tests.benchmarks.served import BRIEF, FRAME, PAIRS, RATE, TOKENS, Served, listening, numbers, source_of
from tests.proofs.measure import ratio
from tests.proofs.registry import Result, Run, Table, proof

__all__ = ["AGAINST_BARE", "MOST", "MOST_CHANGING", "THREADS", "framework_served", "frameworks_per_token"]

THREADS: Final = 50
MOST: Final = 1.5
MOST_CHANGING: Final = 2.5  # where each token changes from the source's thread to the server's
_COLUMNS: Final = ("framework, server", "µs a token", "µs of the bare one", "ratio", "of the pairs", "at most")
_MORE: Final = ("bytes a token", "sleeps a token", "µs once a stream")

_turns = itertools.cycle(range(THREADS))


def paced(path: str) -> Iterator[str]:
    """A model at RATE, as `served` has it, that sleeps on its thread."""
    phase = next(_turns) / THREADS
    due = (math.ceil(time.monotonic() * RATE) + phase) / RATE
    for _ in range(BRIEF if path == "/brief" else TOKENS):
        due += 1 / RATE
        time.sleep(max(0.0, due - time.monotonic()))
        yield stamp()


def _frame(token: str) -> bytes:
    return (b"data: " + token.encode()).ljust(FRAME - 2) + b"\n\n"


def _answering(app: Callable[..., Any]) -> Callable[..., Any]:
    """`app`, in a process that also answers what it used."""

    def answers(environ: Any, start_response: Any) -> Any:
        number = numbers({"path": environ["PATH_INFO"]})
        if number is None:
            return app(environ, start_response)
        start_response("200 OK", [("content-type", "text/plain")])
        return [str(number).encode()]

    return answers


# ---- plain WSGI -----------------------------------------------------------------------------------


def _wsgi_bare(environ: Any, start_response: Any) -> Any:
    start_response("200 OK", [("content-type", "text/event-stream")])
    return map(_frame, paced(environ["PATH_INFO"]))


def _wsgi_guarded(environ: Any, start_response: Any) -> Any:
    return WsgiResponse(paced(environ["PATH_INFO"]))(environ, start_response)


def _wsgi_inline(environ: Any, start_response: Any) -> Any:
    return WsgiResponse(paced(environ["PATH_INFO"]), own_thread=False)(environ, start_response)


# ---- Flask ----------------------------------------------------------------------------------------


def _flask(view: Callable[..., Any]) -> Any:
    app = flask.Flask(__name__)
    for rule in ("/stream", "/brief"):
        app.add_url_rule(rule, rule, view)
    return app


def _flask_bare() -> Any:
    return flask.Response(map(_frame, paced(flask.request.path)), mimetype="text/event-stream")


@flask_guarded
def _flask_guarded() -> Any:
    return paced(flask.request.path)


@flask_guarded(own_thread=False)
def _flask_inline() -> Any:
    return paced(flask.request.path)


# ---- Django ---------------------------------------------------------------------------------------


def _django_bare(request: Any) -> Any:
    return StreamingHttpResponse(map(_frame, paced(request.path)), content_type="text/event-stream")


def _django_guarded(request: Any) -> Any:
    return DjangoResponse(request, paced(request.path))


def _django_inline(request: Any) -> Any:
    return DjangoResponse(request, paced(request.path), own_thread=False)


async def _django_async_bare(request: Any) -> Any:
    async def frames() -> AsyncIterator[bytes]:
        async for token in source_of({"path": request.path}):
            yield _frame(token)

    return StreamingHttpResponse(frames(), content_type="text/event-stream")


async def _django_async_guarded(request: Any) -> Any:
    return DjangoResponse(request, source_of({"path": request.path}))


def _number(request: Any) -> Any:
    return HttpResponse(str(numbers({"path": request.path})))


urlpatterns: list[Any] = []


def _django(view: Callable[..., Any]) -> None:
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None, MIDDLEWARE=[])
    django.setup(set_prefix=False)
    urlpatterns.extend(path(name, view) for name in ("stream", "brief"))
    urlpatterns.extend(path(name, _number) for name in ("cpu", "sleeps"))


def _django_wsgi(view: Callable[..., Any]) -> Any:
    from django.core.wsgi import get_wsgi_application

    _django(view)
    return get_wsgi_application()


def _django_asgi(view: Callable[..., Any]) -> Any:
    from django.core.asgi import get_asgi_application

    _django(view)
    return SealMiddleware(get_asgi_application())


_MADE: Final[dict[tuple[str, str], Callable[[], Any]]] = {
    ("wsgi", "bare"): lambda: _answering(_wsgi_bare),
    ("wsgi", "guarded"): lambda: _answering(_wsgi_guarded),
    ("wsgi", "inline"): lambda: _answering(_wsgi_inline),
    ("flask", "bare"): lambda: _answering(_flask(_flask_bare)),
    ("flask", "guarded"): lambda: _answering(_flask(_flask_guarded)),
    ("flask", "inline"): lambda: _answering(_flask(_flask_inline)),
    ("django", "bare"): lambda: _answering(_django_wsgi(_django_bare)),
    ("django", "guarded"): lambda: _answering(_django_wsgi(_django_guarded)),
    ("django", "inline"): lambda: _answering(_django_wsgi(_django_inline)),
    ("django-asgi", "bare"): lambda: _django_asgi(_django_async_bare),
    ("django-asgi", "guarded"): lambda: _django_asgi(_django_async_guarded),
}
_THREADED: Final = {"wsgi": "WSGI", "flask": "Flask", "django": "Django"}
AGAINST_BARE: Final = {
    **{(name, "inline"): (f"{title}, gunicorn, `own_thread=False`", MOST) for name, title in _THREADED.items()},
    **{(name, "guarded"): (f"{title}, gunicorn", MOST_CHANGING) for name, title in _THREADED.items()},
    ("django-asgi", "guarded"): ("Django, uvicorn", MOST),
}
"""A framework, and the way that is measured beside its bare one; what that is called, and the most it may cost."""


def application(framework: str, way: str) -> Any:
    """What a server's process serves."""
    return _MADE[framework, way]()


def framework_served(framework: str, way: str) -> AbstractContextManager[int]:
    """A framework's view, bare or guarded, served by a process; its port."""
    if framework == "django-asgi":
        return listening([sys.executable, "-m", __name__, way])
    app = f"{__name__}:application({framework!r}, {way!r})"
    command = [sys.executable, "-m", "gunicorn", app, "-k", "gthread", "--threads", str(THREADS + 8)]
    return listening([*command, "-b", "127.0.0.1:0", "--graceful-timeout", "1"])


@proof(
    claim="On gunicorn with threads a guarded token costs the server at most 1.5 times the CPU of the framework's bare "
    "streaming response with `own_thread=False`, and at most 2.5 times else; in Django on uvicorn at most 1.5 times.",
    minutes=14,
)
def frameworks_per_token(run: Run) -> Result:
    rows, shown = [], True
    for (framework, way), (title, most) in AGAINST_BARE.items():
        run.say(title)
        with framework_served(framework, way) as ours, framework_served(framework, "bare") as theirs:
            mine, other = Served(ours, THREADS), Served(theirs, THREADS)
            found = ratio(mine, other, pairs=PAIRS, say=run.say)
        shown = shown and found.median <= most
        spread = f"{found.low:.3f} to {found.high:.3f}"
        rows.append((title, found.subject, found.reference, found.median, spread, most, *mine.more, *other.more))
    columns = (*_COLUMNS, *_MORE, *(f"{name}, bare" for name in _MORE))
    notes = [f"{THREADS} streams at {RATE} tokens a second, {TOKENS} tokens each; bytes with head and framing."]
    return Result(shown, [Table(columns, rows)], notes, ["gunicorn", "flask", "django", "uvicorn"])


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(application("django-asgi", sys.argv[1]), port=0, lifespan="off", access_log=False)
