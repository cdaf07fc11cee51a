"""Dialects: what existing clients expect, one provider each, both directions in one file.

base       what a dialect is
native     our own form
openai     chat.completion.chunk
responses  OpenAI's Responses
anthropic  the events of Messages
ui         the AI SDK's UI message stream
agui       the events of AG-UI
raw        a provider's own events, re-framed
text       text/plain
events     what the dialects of events that open and close have in common
blocks     the fields of blocks, and when a tool call may be run
assembly   blocks out of a provider's pieces
provider   what a provider's events say, and how they end
mould      chunks that differ in their text only
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamguard.core.arguments import setting_named
from streamguard.core.dialect.agui import AgUi
from streamguard.core.dialect.anthropic import Anthropic
from streamguard.core.dialect.base import Dialect, DialectEncoder, DialectReader, Payload, Reading, has_abort_part
from streamguard.core.dialect.native import Native
from streamguard.core.dialect.openai import OpenAI
from streamguard.core.dialect.raw import Raw
from streamguard.core.dialect.responses import OpenAIResponses
from streamguard.core.dialect.text import Text
from streamguard.core.dialect.ui import Ui

__all__ = [
    "AgUi",
    "Anthropic",
    "Dialect",
    "DialectEncoder",
    "DialectReader",
    "Native",
    "OpenAI",
    "OpenAIResponses",
    "Payload",
    "Raw",
    "Reading",
    "Text",
    "Ui",
    "dialect_named",
    "has_abort_part",
]

_ALL: Final[tuple[Dialect, ...]] = (
    Native(), OpenAI(), OpenAIResponses(), Anthropic(), Ui(), AgUi(), Raw(), Text(),
)  # fmt: skip
_BY_NAME: Final[Mapping[str, Dialect]] = {dialect.name: dialect for dialect in _ALL}
_OWN: Final = frozenset(map(type, _BY_NAME.values()))


def dialect_named(dialect: str | Dialect) -> Dialect:
    """The dialect of this name with its default settings; a Dialect is returned as it is.

    Raises ValueError for a name that nobody knows, TypeError for anything else, a dialect's class included.
    """
    if type(dialect) in _OWN:  # the check of a protocol asks for each of its members: ten times this
        return dialect  # type: ignore[return-value]
    return setting_named("dialect", dialect, _BY_NAME, Dialect, "OpenAI(model='m')", word="dialect")
