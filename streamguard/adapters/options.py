"""How a stream is served: the options that every adapter takes by name, checked when they are given.

`Options` is their names and types, for type checkers; `AnswerOptions` the checked values, shared by all requests
of an endpoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypedDict

import attrs
from attrs.validators import optional

from streamguard.adapters.admitting import tells_principals
from streamguard.adapters.pacing import a_window
from streamguard.core.arguments import did_you_mean, instance_of, one_of, require_callable, shown
from streamguard.core.compress import Gzip, gzip_named
from streamguard.core.dialect import Dialect, Native, OpenAI, dialect_named
from streamguard.core.exchange import Granted, RequestFacts, Terms, granted
from streamguard.core.flush import FlushPolicy, Immediate, checked_policy
from streamguard.core.wire import Plain, Sse, Wire, wire_named
from streamguard.observe.hooks import Observer, Observers, OnEnd, observers_of
from streamguard.runtime.admission import Admission, admission_of
from streamguard.runtime.buffer import Buffer
from streamguard.runtime.configured import a_policy
from streamguard.runtime.runs import OnDisconnect
from streamguard.runtime.slots import Limits
from streamguard.runtime.timing import TIMING_EXAMPLE, Timing

__all__ = ["AnswerOptions", "Options", "StreamNames", "StreamOptions", "no_endpoint"]


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
    observe: Observer | Sequence[Observer] | Observers | None
    limits: Limits | Admission | None
    compress: Literal["gzip"] | Gzip | None
    token_flush: bool
    window: bool | int
    own_thread: bool


class StreamNames(Options, total=False):
    """Those of a stream that outlives its connections: the same, and what is in StreamOptions."""

    name: str | Callable[[Any], str | None] | None
    on_disconnect: OnDisconnect | None
    exclusive: bool
    confidential: bool
    resumer: Callable[..., Any] | None
    resumer_name: str | None


def _hook(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        require_callable(attribute.name, value, "the Outcome")


@attrs.frozen
class AnswerOptions:
    """How a stream is served; every adapter takes these by name.

    `flush`: when held text leaves. `dialect`, `wire`: their names or instances. `timing`: time limits. `buffer`:
    how far the source may run ahead of the network; without one a sync source has the default Buffer, and an async
    one waits for each write. `abort`: whether a stream that did not complete also aborts the connection of a reader
    that verifies. `http10`: what an HTTP/1.0 request gets: the stream and one warning a process (`warn`), the whole
    answer at once or a 502 (`buffer`), or 426 (`refuse`). `unsealed`: `allow` serves under a BaseHTTPMiddleware
    without a seal. `on_end`: called with the Outcome, once in each process that generates the
    stream. `observe`: an Observer, or several, who are told what happens. `limits`: how many streams of these options
    run at once, and who may wait; an Admission is shared by all that it is given to. `compress`: how an answer is
    compressed whose reader asks for that. `token_flush`: whether a reader may have one frame a token, whatever `flush`
    says. `window`: how many bytes may be on their way to a reader, True for as many as its link holds, where the server
    shows its socket. `own_thread`: whether a plain generator has a thread of its own where a server's thread serves the
    request too (WSGI): without, a token costs less, and nothing is sent, and nothing noticed, while the generator waits
    for its next one.
    """

    flush: FlushPolicy = attrs.field(factory=Immediate, converter=checked_policy)
    dialect: Dialect = attrs.field(factory=Native, converter=dialect_named)
    wire: Wire | None = attrs.field(default=None, converter=attrs.converters.optional(wire_named))
    timing: Timing = attrs.field(factory=Timing, validator=instance_of(Timing, TIMING_EXAMPLE))
    buffer: Buffer | None = attrs.field(default=None, validator=optional(instance_of(Buffer, "Buffer(max_items=100)")))
    abort: Literal["always", "unless-negotiated"] = attrs.field(
        default="always", validator=one_of("always", "unless-negotiated")
    )
    http10: Literal["warn", "buffer", "refuse"] = attrs.field(
        default="warn", validator=one_of("warn", "buffer", "refuse")
    )
    unsealed: Literal["refuse", "allow"] = attrs.field(default="refuse", validator=one_of("refuse", "allow"))
    on_end: OnEnd | None = attrs.field(default=None, validator=_hook)
    observe: Observers | None = attrs.field(default=None, converter=observers_of)
    limits: Admission | None = attrs.field(default=None, converter=admission_of, validator=tells_principals)
    compress: Gzip | None = attrs.field(default=None, converter=attrs.converters.optional(gzip_named))
    token_flush: bool = attrs.field(default=False, validator=instance_of(bool, "token_flush=True"))
    window: bool | int = attrs.field(default=False, validator=a_window)
    own_thread: bool = attrs.field(default=True, validator=instance_of(bool, "own_thread=False"))

    def __attrs_post_init__(self) -> None:
        if (self.dialect.name == "text") != (self.carrier(None).name == "plain"):
            raise ValueError("dialect `text` and carrier `plain` go together, and with nothing else")
        if self.observe is not None:
            self.observe.attach(self.limits)

    @classmethod
    def of(cls, options: AnswerOptions | None, named: Options) -> AnswerOptions:
        """`options`, or the defaults, with those that are named. Raises TypeError for a name that is none."""
        given: dict[str, Any] = dict(named)
        if options is None:
            options = _DEFAULTS
        elif not isinstance(options, cls):
            raise TypeError(f"options is an AnswerOptions(…), not {shown(options)}")
        for name in given:
            if name not in _NAMES:
                raise TypeError(_unknown(name, _NAMES))
        return attrs.evolve(options, **given) if given else options

    @classmethod
    def of_one(cls, options: AnswerOptions | None, named: Options) -> AnswerOptions:
        """The same for a single answer. Raises TypeError for Limits too, which each answer would have of its own."""
        if isinstance(named.get("limits"), Limits):
            raise TypeError("limits of one answer limit nothing: make an Admission(Limits(…)) once, for all of them")
        return cls.of(options, named)

    @classmethod
    def of_resumes(cls, named: Options) -> AnswerOptions:
        """The same for what only resumes. Raises TypeError for limits too."""
        if named.get("limits") is not None:
            raise TypeError("what resumes has no limits: those of new streams are StreamGuard(…, limits=Limits(…))")
        if named.get("observe") is not None:
            raise TypeError(_OBSERVERS)
        return cls.of(None, named)

    def carrier(self, answer_terms: Terms | None) -> Wire:
        """The carrier for a request's terms."""
        wire = self.wire
        if wire is None:
            wire = Plain() if self.dialect.name == "text" else Sse()
        if isinstance(wire, Sse) and answer_terms is not None and answer_terms.ids == "id":
            wire = attrs.evolve(wire, ids="id")
        return wire

    def granted(self, facts: RequestFacts, headers: Iterable[tuple[str, str]] = ()) -> Granted:
        """What a request is granted of the keys that it asks for. `headers` are those that the application gave: a body
        that it names a coding of is in no other."""
        coded = any(name.lower() == "content-encoding" for name, _ in headers)
        token = self.token_flush or isinstance(self.flush, Immediate)
        gzip = self.compress is not None and not coded
        return granted(facts, token=token, gzip=gzip, held=self.http10 == "buffer")

    def policy(self, keys: Granted) -> FlushPolicy:
        """The flush policy of a stream whose reader was granted `keys`."""
        return Immediate() if keys.flush == "token" else self.flush


_OBSERVERS: Final = "observers are a guard's, for all its streams: StreamGuard(…, observe=…)"
_DEFAULTS: Final = AnswerOptions()
_NAMES: Final = tuple(field.name for field in attrs.fields(AnswerOptions))


def _called(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{attribute.name} is a function, not {shown(value)}")


def _switch(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{attribute.name} is True or False, not {shown(value)}")


def _naming(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None or isinstance(value, str):
        if value == "":
            raise ValueError("name is a text that is not empty, or None for no name; not ''")
    elif not callable(value):
        raise TypeError(f"name is a text, or a function of the request that returns one, not {shown(value)}")
    elif any(map(inspect.iscoroutinefunction, (value, getattr(value, "__call__", None)))):  # noqa: B004
        raise TypeError(
            f"name: {shown(value)} is a coroutine function: write a plain `def`, which reads the name from the "
            f"request's path, query or headers"
        )


@attrs.frozen
class StreamOptions:
    """What a stream that outlives its connections has beside AnswerOptions.

    `name`: the application's own name for it (a chat's id), or a function that makes one of the request; a page that
    was reloaded asks for the newest stream of a name. `on_disconnect`: what the last reader's leaving does; None is the
    guard's. `exclusive`: one reader at a time, and another client is refused. `confidential`: no layer is to compress
    it. `resumer`: what goes on with it after its process died. `resumer_name`: what all processes call that; the
    endpoint's name, by default. For one that comes with a request, the name that it was registered under.
    """

    name: str | Callable[[Any], str | None] | None = attrs.field(default=None, validator=_naming)
    on_disconnect: OnDisconnect | None = attrs.field(default=None, validator=optional(a_policy))
    exclusive: bool = attrs.field(default=False, validator=_switch)
    confidential: bool = attrs.field(default=False, validator=_switch)
    resumer: Callable[..., Any] | None = attrs.field(default=None, validator=_called)
    resumer_name: str | None = attrs.field(default=None, validator=optional(attrs.validators.instance_of(str)))

    def name_of(self, request: Any) -> str | None:
        """The name of a request's stream. Raises TypeError and ValueError for what a function answered that is none."""
        if not callable(self.name):
            return self.name
        found: Any = self.name(request)
        if found is None or (isinstance(found, str) and found):
            return found
        answered = shown(found)
        if inspect.iscoroutine(found):
            found.close()  # else Python warns, later, that it was never awaited
            answered = "a coroutine"
        kind, right = (ValueError, " that is not empty") if found == "" else (TypeError, ", for example str(…)")
        raise kind(f"{shown(self.name)} answered {answered} for name: return a text{right}, or None for no name")

    @classmethod
    def split(cls, named: StreamNames) -> tuple[StreamOptions, AnswerOptions]:
        """Both kinds of options, by name. Raises TypeError for a name that is none, ValueError for what a stream in a
        log cannot have."""
        given: dict[str, Any] = {**named}
        names = tuple(field.name for field in attrs.fields(cls))
        for name in given:
            if name not in names and name not in _NAMES:
                raise TypeError(_unknown(name, (*names, *_NAMES), "guard.response(request, source"))
        if given.get("limits") is not None:
            raise TypeError("limits are a guard's, for all its streams: StreamGuard(…, limits=Limits(…))")
        if given.get("observe") is not None:
            raise TypeError(_OBSERVERS)
        answer: Any = {name: value for name, value in given.items() if name not in names}
        options = AnswerOptions.of(None, answer)
        if options.dialect.name == "text":
            raise ValueError("a stream of dialect `text` has no cursors, so it cannot be resumed: guard it directly")
        if not options.own_thread:
            raise ValueError("a stream in a log outlives its request, so its source has a thread of its own")
        return cls(**{name: value for name, value in given.items() if name in names}), options


# Names that are no options, and the option that takes each.
_ELSEWHERE: Final[dict[str, str]] = {
    **{
        field.name: f"{option}={kind.__name__}({field.name}=…)"
        # A name that two of them have is the last one's: `heartbeat` is a time before it is a form.
        for option, kind in (
            ("limits", Limits), ("wire", Sse), ("dialect", OpenAI), ("buffer", Buffer), ("timing", Timing)
        )
        for field in attrs.fields(kind)
    },
    "gzip": "compress='gzip'",
    "timeout": "timing=Timing(stall=…)",
}


def no_endpoint(given: object, decorator: str = "@guarded") -> str:
    """What to say of what stands where an endpoint belongs: an option, perhaps, which has a name."""
    for option in ("dialect", "wire", "flush", "timing", "buffer", "limits", "compress"):
        try:
            AnswerOptions.of(None, {option: given})  # type: ignore[misc]
        except (TypeError, ValueError):
            continue
        return f"options are given by name: write {decorator}({option}={shown(given)})"
    name = getattr(given, "__name__", given)
    return f"{decorator} needs a function that yields, or one that returns something to iterate; {name!r} is neither"


def _unknown(name: str, known: tuple[str, ...], response: str = "GuardedResponse(source") -> str:
    """What to say of an option that is none."""
    if name in ("status_code", "headers", "background"):
        advice = f": return {response}, {name}=…);"
    elif name in _ELSEWHERE:
        advice = f": write {_ELSEWHERE[name]};"
    else:
        advice = did_you_mean(name, known) or ";"
    return f"unknown option {name!r}{advice} known: {', '.join(known)}"
