"""The core: the stages of a stream, without an event loop. In the order in which data flows:

    items      what a source may yield
    flush      when held text leaves: the policies, and `adaptive`; `flush_stage` holds the text
    framing    text and items -> frames: sequence, offset, checksum
    guard      the last gate: every frame passes it, and a stream ends once
    wire       frames -> bytes, one carrier each
    pipeline   the stages joined: read this first
    verify     the same stream seen from its reader
    dialect    what existing clients expect, one provider each

Underneath: `errors` (the tree), `cursor` (the guard that travels beside each frame), `frame`,
`states` (the transition table), `jsontext`, `receipt`.

Nothing here knows a clock, a socket or a task: time is an argument, bytes go in and out.
"""
