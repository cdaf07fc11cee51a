"""The test applications of the adapters that run on WSGI, for `check_adapter`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs

import flask
from flask import Flask

from streamguard.adapters import flask as on_flask
from streamguard.adapters import wsgi as on_wsgi
from streamguard.app import anyone_with_the_id
from streamguard.log.memory import MemoryLog
from streamguard.testing.adapter_sources import SOURCES, AdapterSources

__all__ = ["WSGI_APPS", "flask_here", "inline_app", "pieces", "wsgi"]


def pieces(sources: AdapterSources, name: str, label: str) -> Iterator[Any]:
    """The source, its text as bytes: text that waits in a buffer is joined, and the contract counts frames."""
    for item in sources.open_sync(name, label):
        yield item.encode() if isinstance(item, str) else item


def wsgi_app(sources: AdapterSources, **named: Any) -> Any:
    """Plain WSGI: responses, of a function that routes. Options are those of answers without a log."""
    guard = on_wsgi.StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    def route(environ: Any, start_response: Any) -> Any:
        *folder, name = environ["PATH_INFO"].strip("/").split("/")
        if folder == ["facts"]:
            body = json.dumps(sources.facts(name)).encode()
            start_response("200 OK", [("content-type", "application/json"), ("content-length", str(len(body)))])
            return [body]
        label = parse_qs(environ["QUERY_STRING"])["label"][0]
        source, options = pieces(sources, name, label), sources.options(name)
        if folder == ["logged"]:
            return guard.response(environ, source, **options)(environ, start_response)
        return on_wsgi.GuardedResponse(source, **options, **named)(environ, start_response)

    return guard.install(route, "/streams", close_log=False)


def flask_app(sources: AdapterSources) -> Any:
    """Flask: decorated views that yield."""
    app = Flask(__name__)
    guard = on_flask.StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    @app.get("/facts/<label>")
    def facts(label: str) -> Any:
        return sources.facts(label)

    def add(name: str) -> None:
        def tokens() -> Iterator[Any]:
            yield from pieces(sources, name, flask.request.args["label"])

        options: Any = sources.options(name)
        both: Any = {"methods": ["GET", "POST"]}
        app.add_url_rule(f"/{name}", name, on_flask.guarded(**options)(tokens), **both)
        app.add_url_rule(f"/logged/{name}", f"logged {name}", guard.stream(**options)(tokens), **both)

    for name in SOURCES:
        add(name)
    guard.install(app, "/streams", close_log=False)
    return app


def inline_app(sources: AdapterSources) -> Any:
    """The same, on the server's thread."""
    return wsgi_app(sources, own_thread=False)


WSGI_APPS: dict[str, Callable[[AdapterSources], Any]] = {"wsgi": wsgi_app, "flask": flask_app}

_sources = AdapterSources()


def wsgi() -> Any:
    """For a server that is a process of its own."""
    return wsgi_app(_sources)


def flask_here() -> Any:
    return flask_app(_sources)
