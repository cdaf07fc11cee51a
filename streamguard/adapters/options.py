"""How a stream is served: the options that every adapter takes by name, checked when they are given.

`Options` is their names and types, for type checkers; `AnswerOptions` the checked values, shared by all requests
of an endpoint.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import attrs

from streamguard.core.dialect import Dialect, Native, dialect_named
from streamguard.core.exchange import Terms
from streamguard.core.flush import FlushPolicy, Immediate, checked_policy
from streamguard.core.wire import Plain, Sse, Wire, wire_named
from streamguard.observe.hooks import OnEnd
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.timing import Timing

__all__ = ["AnswerOptions", "Options"]


class Options(TypedDict, total=False):
    """The options by name; what each means is in AnswerOptions."""

    flush: FlushPolicy
    dialect: str | Dialect
    wire: str | Wire | None
    timing: Timing
    buffer: Buffer | None
    abort: Literal["always", "unless-negotiated"]
    http10: Literal["warn", "buffer", "refuse"]
    unsealed: Literal["refuse", "allow"]
    on_end: OnEnd | None


def _one_of(*words: str) -> Any:
    def check(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
        if value not in words:
            raise ValueError(f"{attribute.name} is one of {', '.join(map(repr, words))}, not {value!r}")

    return check


def _is_timing(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Timing):
        raise TypeError(f"timing is a Timing(…), for example Timing(stall=60), not {value!r}")


def _is_buffer(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, (Buffer, type(None))):
        raise TypeError(f"buffer is a Buffer(…), for example Buffer(max_items=100), not {value!r}")


@attrs.frozen
class AnswerOptions:
    """How a stream is served; every adapter takes these by name.

    `flush`: when held text leaves. `dialect`, `wire`: their names or instances. `timing`: time limits. `buffer`:
    how far the source may run ahead of the network; without one a sync source has the default Buffer, and an async
    one waits for each write. `abort`: whether a stream that did not complete also aborts the connection of a reader
    that verifies. `http10`: what an HTTP/1.0 request gets: the stream and one warning a process (`warn`), the whole
    answer at once or a 502 (`buffer`), or 426 (`refuse`). `unsealed`: `allow` serves under a BaseHTTPMiddleware
    without a seal. `on_end`: called once with the Outcome.
    """

    flush: FlushPolicy = attrs.field(factory=Immediate, converter=checked_policy)
    dialect: Dialect = attrs.field(factory=Native, converter=dialect_named)
    wire: Wire | None = attrs.field(default=None, converter=attrs.converters.optional(wire_named))
    timing: Timing = attrs.field(factory=Timing, validator=_is_timing)
    buffer: Buffer | None = attrs.field(default=None, validator=_is_buffer)
    abort: Literal["always", "unless-negotiated"] = attrs.field(
        default="always", validator=_one_of("always", "unless-negotiated")
    )
    http10: Literal["warn", "buffer", "refuse"] = attrs.field(
        default="warn", validator=_one_of("warn", "buffer", "refuse")
    )
    unsealed: Literal["refuse", "allow"] = attrs.field(default="refuse", validator=_one_of("refuse", "allow"))
    on_end: OnEnd | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.is_callable())
    )

    def __attrs_post_init__(self) -> None:
        if (self.dialect.name == "text") != (self.carrier(None).name == "plain"):
            raise ValueError("dialect `text` and carrier `plain` go together, and with nothing else")

    @classmethod
    def of(cls, options: AnswerOptions | None, named: Options) -> AnswerOptions:
        """`options`, or the defaults, with those that are named."""
        given: dict[str, Any] = dict(named)
        return attrs.evolve(options, **given) if options is not None else cls(**given)

    def carrier(self, answer_terms: Terms | None) -> Wire:
        """The carrier for a request's terms."""
        wire = self.wire
        if wire is None:
            wire = Plain() if self.dialect.name == "text" else Sse()
        if isinstance(wire, Sse) and answer_terms is not None and answer_terms.ids == "id":
            wire = attrs.evolve(wire, ids="id")
        return wire
