"""What goes on with streams whose process died, by the names that the streams' options bear.

A name has to mean the same in every process, and in the next version of the program: what it leads to may write the
rest of an answer there, under a receipt that says COMPLETE. So it is made of what the program's text says, never of an
order or of what came last:

    @guard.stream(resumer=…)             the endpoint's module and name, or `resumer_name=`
    guard.register(Endpoint(…), name=…)  that name, or the resumer's module and name
    guard.response(…, resumer=…)         the name that it was registered under; else the resumer's own, if it is a
                                         function of a module, which is the same for all requests

Whatever else a request brings (a closure, a lambda, a partial, an object) knows that request, its prompt and its user.
It goes on with that one stream, in this process; elsewhere the stream ends as `producer_lost`.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from types import FunctionType
from typing import Any, Final

import attrs

from streamguard.core.dialect import Dialect
from streamguard.core.flush import FlushPolicy
from streamguard.observe.hooks import OnEnd
from streamguard.runtime.runs import OnDisconnect
from streamguard.runtime.takeover import Resumer
from streamguard.runtime.timing import Timing

__all__ = ["LEFT", "Endpoint", "Resumers"]

LEFT: Final = 100  # streams without an end that this process has left, and could go on with

logger = logging.getLogger("streamguard")


@attrs.frozen
class Endpoint:
    """What goes on with the streams of one endpoint after their process died, and how they are made."""

    resumer: Resumer
    dialect: Dialect
    flush: FlushPolicy
    timing: Timing
    on_end: OnEnd | None
    on_disconnect: OnDisconnect | None = None  # the guard's, by default


class Resumers(dict[str, Endpoint]):
    """By name, those that all processes know; and by sid, what knows one request only."""

    def __init__(self) -> None:
        super().__init__()
        self.of_streams: dict[str, Endpoint] = {}
        self._of_requests: set[str] = set()  # names that were not registered
        self._left: deque[str] = deque()
        self._warned: set[str] = set()

    def register(self, endpoint: Endpoint, name: str | None = None, function: Any = None) -> str:
        """The name of what stands in the program's text: `name`, or that of `function`, or the resumer's.

        Raises ValueError where there is none, and where it is another's already.
        """
        if name is None:
            name = _name_of(endpoint.resumer if function is None else function, endpoint)
            if name is None:
                raise ValueError(f"{_place(function or endpoint.resumer)} {_UNNAMED}")
        known = self.get(name)
        if known is not None and name not in self._of_requests and not _same(known, endpoint):
            raise ValueError(f"{name!r} is the name of two resumers, or of two endpoints with one: {_SAY}")
        self._of_requests.discard(name)
        self[name] = endpoint
        return name

    def of_request(self, endpoint: Endpoint, name: str | None = None) -> str | None:
        """The name of what came with a request, which may be registered under `name`. None for what knows that request,
        or may: with it another user's text would be written into an answer."""
        for registered in (name, own := _name_of(endpoint.resumer, endpoint)):
            known = None if registered is None or registered in self._of_requests else self.get(registered)
            if known is not None and known.resumer == endpoint.resumer:
                return registered
        hook = endpoint.on_end
        if own is not None and _of_module(endpoint.resumer) and (hook is None or _of_module(hook)):
            if hook is not None:
                own = f"{own}, {_place(hook)}"  # two endpoints may have one resumer, and each its own end
            if endpoint.on_disconnect is not None:
                own = f"{own}, {endpoint.on_disconnect}"
            known = self.setdefault(own, endpoint)
            if known is endpoint:
                self._of_requests.add(own)
            if known.resumer is endpoint.resumer and known.on_end is hook:
                return own
        place = _place(endpoint.resumer)
        if place not in self._warned:
            self._warned.add(place)
            logger.warning("%s came with a request as its stream's resumer, %s", place, _ALONE)
        return None

    def keep(self, sid: str, endpoint: Endpoint | None) -> None:
        """It goes on with this stream, and with no other."""
        if endpoint is not None:
            self.of_streams[sid] = endpoint

    def over(self, sid: str, sealed: bool) -> None:
        """The run is over. One that has left its stream without an end may be asked to go on with it."""
        if sealed:
            self.of_streams.pop(sid, None)
        elif sid in self.of_streams:
            self._left.append(sid)
            if len(self._left) > LEFT:
                self.of_streams.pop(self._left.popleft(), None)

    def find(self, sid: str, name: str) -> Endpoint | None:
        return self.of_streams.get(sid) or self.get(name)


_SAY: Final = "give each a name of its own, @guard.stream(resumer_name=…) or guard.register(…, name=…)"
_UNNAMED: Final = (
    "has no name that other processes would know it by: say @guard.stream(resumer_name=…), or guard.register(…, name=…)"
)
_ALONE: Final = (
    "and it, or its on_end, is no function of a module, which is the same for every request: if this process dies, the "
    "stream ends as `producer_lost`. To have such streams gone on with elsewhere, call guard.register(Endpoint(…), "
    "name=…) when the application starts, and give that same resumer"
)


def _inner(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function)


def _place(function: Any) -> str:
    inner = _inner(function)
    return f"{inner.__module__}.{inner.__qualname__}"


def _name_of(function: Any, endpoint: Endpoint) -> str | None:
    """The name that the program's text gives it; None for a lambda and a partial, of which there may be several."""
    if isinstance(function, functools.partial) or "<lambda>" in _place(function):
        return None
    return f"{_place(function)} in {endpoint.dialect.name}"


def _of_module(function: Any) -> bool:
    """Whether it is a plain function of a module, which knows nothing but what it is given."""
    return isinstance(function, FunctionType) and function.__closure__ is None and "<" not in function.__qualname__


def _same(one: Endpoint, other: Endpoint) -> bool:
    return (one.resumer, one.on_end, one.on_disconnect) == (other.resumer, other.on_end, other.on_disconnect)
