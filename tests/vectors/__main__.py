"""`python -m tests.vectors`: write the files."""

from __future__ import annotations

from tests.vectors.files import FOLDER, WIRES, document, written_out

for wire in WIRES:
    text = written_out(document(wire))
    (FOLDER / f"{wire}.json").write_text(text, encoding="utf-8")
    print(f"{wire}.json: {len(text)} bytes")
