"""The body of a request of Starlette's, which may have been read already: by the framework, or by the endpoint."""

from __future__ import annotations

import hashlib
from typing import Any

from streamguard.adapters.asgi import request_facts
from streamguard.core.exchange import Refusal
from streamguard.core.unstreamed import refuse_unstreamed

__all__ = ["body_of", "read_body", "unasked"]


async def read_body(request: Any) -> None:
    """Read the body before the stream begins, so that an endpoint that yields can still ask for it.

    While the stream runs its driver owns `receive`: it waits there for the reader to leave, and an endpoint
    that waited there too, inside its generator, would wait for a body that is gone.
    """
    try:
        await request.body()
    except RuntimeError:
        pass  # consumed already, by FastAPI for a form


def unasked(request: Any, dialect: str) -> Refusal | None:
    """What the body says against a stream, where this request object has read it. Elsewhere nothing is known: another
    object may have read it, and would be waited for in vain."""
    body: bytes = getattr(request, "_body", b"")  # where Starlette keeps it, under no public name
    return refuse_unstreamed(request_facts(request.scope), dialect, body)


async def body_of(request: Any) -> bytes:
    """The request's body, wherever it is by now. What an endpoint read by itself, piece by piece, is gone."""
    try:
        body: bytes = await request.body()
        return body
    except RuntimeError:  # consumed: by FastAPI for a form, which keeps that
        pass
    try:
        form = await request.form()
    except RuntimeError:
        return b""
    parts: list[Any] = []
    for name, value in form.multi_items():
        if isinstance(value, str):
            parts.append((name, value))
        else:
            parts.append((name, value.filename, hashlib.sha256(await value.read()).hexdigest()))
            await value.seek(0)
    return repr(parts).encode()
