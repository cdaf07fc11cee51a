"""What a source, a network and a configuration may do to a stream, as Hypothesis strategies.

    texts            any text: line ends of every kind, NUL, byte-order marks, emoji, halves of characters,
                     look-alikes of our own framing
    clean_texts      the same without halves of characters: what a reader can be given as it is
    token_cuts       a text as a source yields it: in pieces, some of them empty, cut anywhere
    byte_cuts        bytes as a network delivers them: cut anywhere
    items            what a source may yield, in an order that is allowed
    flush_policies   every flush policy of the library, composed too
    dialects, wires  every dialect that is framed, every carrier with every setting

    @given(items(), flush_policies(), wires())
    def test_my_server(items, policy, wire): ...

This is the one module of the package that needs Hypothesis.
"""

from __future__ import annotations

from hypothesis import strategies as st

from streamguard.core.adaptive import Adaptive
from streamguard.core.dialect import AgUi, Anthropic, Dialect, Native, OpenAI, OpenAIResponses, Ui
from streamguard.core.flush import (
    AtBoundary,
    EveryBytes,
    EveryTokens,
    FlushPolicy,
    HoldBack,
    Immediate,
    Within,
    any_of,
)
from streamguard.core.items import Block, Checkpoint, Finish, Item, tool_call
from streamguard.core.wire import Binary, Ndjson, Sse, Wire
from streamguard.testing.chunks import cut

__all__ = [
    "byte_cuts",
    "clean_texts",
    "dialects",
    "flush_policies",
    "items",
    "plain_policies",
    "texts",
    "token_cuts",
    "wires",
]

_LINE_ENDS = ["\n", "\r", "\r\n", "\n\n", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"]
_LOOK_ALIKES = [
    "data: x\n\n",
    "event: end\ndata: {}\n\n",
    "id: AAECAwQFBgcICQoLDA0ODw.1.7.6fb73295.complete\n",
    ": sg AAECAwQFBgcICQoLDA0ODw.1.7.6fb73295\n",
    "\n\ndata: [DONE]\n\n",
    "[DONE]",
    '{"choices":[]}',
    '","end":"',
    '"',
    "\\",
    "\\u2028",
    "SG\x01",
]
_HALVES = ["\ud83d", "\ude42", "\ud83d\ude42", "\ude42\ud83d", "\udcff", "\udfff", "\ud800", "\udbff", "\udc00"]
_CHARACTERS = [
    "\0",
    "\x1b",
    "\x7f",
    "\ufeff",
    "\ufffd",
    "\ufffe",
    "é",
    "e\u0301",
    "你好",
    "🙂",
    "👩\u200d👩\u200d👧",
    "\U0010ffff",
    "\ue000",
    "\ud7ff",
]
_WORDS = [" ", "a", "ab", ". ", "! ", "。", "<end>", "</s>", "<", "END", "aab", "STOP"]

_pieces = st.one_of(
    st.sampled_from(_LINE_ENDS),
    st.sampled_from(_LOOK_ALIKES),
    st.sampled_from(_CHARACTERS),
    st.sampled_from(_WORDS),
    st.text(max_size=4),
)
_torn_pieces = st.one_of(_pieces, st.sampled_from(_HALVES), st.text(st.characters(exclude_categories=()), max_size=4))


def clean_texts() -> st.SearchStrategy[str]:
    """Any text without halves of characters."""
    return st.lists(_pieces, max_size=8).map("".join)


def texts() -> st.SearchStrategy[str]:
    """Any text at all."""
    return st.lists(_torn_pieces, max_size=8).map("".join)


@st.composite
def token_cuts(draw: st.DrawFn, source: st.SearchStrategy[str] | None = None) -> list[str]:
    """A text of `source` (default: `texts()`) in pieces, some of them empty, a surrogate pair cut too."""
    text = draw(texts() if source is None else source)
    return cut(text, draw(st.lists(st.integers(0, len(text)), max_size=12)))


@st.composite
def byte_cuts(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> list[bytes]:
    """Bytes of `source` in pieces, cut anywhere: whole, a byte at a time, or at random."""
    data = draw(source)
    kind = draw(st.sampled_from(["whole", "bytes", "random"]))
    if kind == "whole":
        return [data]
    if kind == "bytes":
        return [data[at : at + 1] for at in range(len(data))]
    return cut(data, draw(st.lists(st.integers(0, len(data)), max_size=12)))


_first = st.sampled_from(["now", "policy"])
_stops = st.lists(st.sampled_from(["<end>", "</s>", "aab", "aa", "END", "\n\n", "🙂", "data:"]), min_size=1, max_size=3)


def plain_policies() -> st.SearchStrategy[FlushPolicy]:
    """Every flush policy of the library that stands alone."""
    return st.one_of(
        st.builds(Immediate),
        st.builds(EveryTokens, st.integers(1, 9), first=_first),
        st.builds(EveryBytes, st.integers(1, 40), first=_first),
        st.builds(Adaptive, st.sampled_from([0.001, 0.1])),
        st.builds(Within, st.sampled_from([0.001, 0.04, 1.0]), first=_first),
        st.builds(AtBoundary, st.sampled_from(["word", "sentence", r"</?\w+>", "b*"]), window=st.integers(1, 64)),
    )


def flush_policies() -> st.SearchStrategy[FlushPolicy]:
    """Every flush policy of the library, in `any_of` and in HoldBack too."""
    plain = plain_policies()
    composed = st.lists(plain, min_size=1, max_size=3).map(lambda several: any_of(*several))
    held = st.builds(HoldBack, _stops, flush=st.one_of(st.none(), plain, composed))
    return st.one_of(plain, composed, held)


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(-1e9, 1e9), clean_texts()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(clean_texts(), inner, max_size=3)),
    max_leaves=6,
)
_fields = st.dictionaries(clean_texts().filter(lambda key: key != "type"), _json, max_size=3)
_usages = st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), st.integers(0, 10**6))


def _blocks() -> st.SearchStrategy[Block]:
    return st.one_of(
        st.builds(Block, st.sampled_from(["image", "tool_result", "reasoning", "mine"]), _fields),
        st.builds(tool_call, clean_texts(), clean_texts(), clean_texts()),
    )


@st.composite
def items(draw: st.DrawFn, *, finish: bool = True, blocks: bool = True) -> list[Item]:
    """What a source may yield in one answer: text, its UTF-8 in bytes, blocks, checkpoints, and at the end at most one
    Finish. Without `blocks` text alone, for dialects that have no form for the rest."""
    found: list[Item] = []
    for _ in range(draw(st.integers(0, 6))):
        if blocks and draw(st.booleans()):
            found.append(draw(st.one_of(_blocks(), st.builds(Checkpoint, _json))))
        elif draw(st.booleans()):
            found += draw(token_cuts())
        else:
            found += draw(byte_cuts(clean_texts().map(str.encode)))
    if finish and draw(st.booleans()):
        reason = st.sampled_from(["stop", "length", "content_filter"])
        found.append(draw(st.builds(Finish, reason, st.one_of(st.none(), _usages))))
    return found


def dialects() -> st.SearchStrategy[Dialect]:
    """The dialects that make frames of items: all but `raw` and `text`."""
    of_events = st.sampled_from([OpenAIResponses(), Anthropic(), Ui(), AgUi()])
    return st.one_of(st.builds(Native), st.builds(OpenAI, clean_texts(), include_usage=st.booleans()), of_events)


def wires(*, pings: bool = True) -> st.SearchStrategy[Wire]:
    """Every carrier. `pings`: with SSE heartbeats as events too, which only dialect `native` takes."""
    beats = ["comment", "padded", "ping"] if pings else ["comment", "padded"]
    sse = st.builds(Sse, st.sampled_from(["id", "comment"]), st.sampled_from(beats))
    return st.one_of(sse, st.builds(Ndjson), st.builds(Binary))
