"""Streams with every single fault, and what a reader must make of each: data for clients in any language.

    python -m tests.vectors        writes sse.json, ndjson.json and binary.json

A file has `streams`, and each of them `outcomes`: a list of `[verdict, code, frames]` where `frames` counts those that
were handed out before the fault. They are named by characters: `0` and on to `~` without `\\`, then U+00A1 and on.

    name, dialect (a name, {"name", "end"}, or null: the stream says it), zero (what a header promised, or null)
    parts      its bytes: the opening, then a frame each, in base64
    frames     [name, data, text] of each that is handed out
    receipt    status, frames, bytes, crc, finish_reason, usage
    cuts       an outcome for each proper prefix, by its length
    lenient    the same, for a reader that takes a last terminal whose line end is missing
    values     what each byte is changed to: `^n` is exclusive or with n, `=n` is n
    changed    an outcome for each value of each byte; `.` where the byte is that value already
    cases      [name, pieces, outcome, more]: a piece is the number of a part, or bytes in base64; `more` has the
               options and what else is known: zero, max_frame, text, status, failure

`resumes`, of the parts in `words`, a list for each wire: [name, connections, what is known at the end]; a connection is
its wire, pieces, and the header's promise. `reference.json` was made by hand, by other means.
"""
