"""`transformers serve` under GuardMiddleware, or `bare`, for the tests marked `heavy`.

    python -m tests.upstream.guarded_serve bare|guard|log serve --port 8000

Its application is wrapped where transformers builds it. Two endpoints are the tests': `GET /made` says how many tokens
the last generation has made and whether it is over, and after `POST /break` the one that runs raises.
"""

from __future__ import annotations

import sys
from typing import Any

from streamguard.adapters.middleware import GuardMiddleware
from streamguard.app import StreamGuard, anyone_with_the_id
from streamguard.log.memory import MemoryLog

__all__ = ["main"]


def main(kind: str) -> Any:
    """Run the command line of transformers; a server that it starts is guarded, with a log or without, or bare."""
    from transformers.cli.serving import server, utils
    from transformers.cli.transformers import main as run

    class Watched(utils.DirectStreamer):
        last: Watched
        over = broken = False

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            Watched.last = self

        def put(self, value: Any) -> None:
            try:
                if self.broken:
                    raise RuntimeError("broken on purpose")
                super().put(value)
            except BaseException:
                self.over = True  # it goes through `generate`, which ends by it
                raise

        def end(self) -> None:
            super().end()
            self.over = True

    def made() -> dict[str, Any]:
        return {"tokens": Watched.last.total_tokens, "over": Watched.last.over}

    def break_it() -> None:
        Watched.last.broken = True

    build = server.build_server

    def guarded(*given: Any, **named: Any) -> Any:
        app = build(*given, **named)
        app.add_api_route("/made", made)
        app.add_api_route("/break", break_it, methods=["POST"])
        if kind != "bare":
            guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id) if kind == "log" else None
            app.add_middleware(GuardMiddleware, guard=guard, mode="guard", profile="transformers")
        return app

    utils.DirectStreamer = Watched
    server.build_server = guarded
    return run()


if __name__ == "__main__":
    sys.exit(main(sys.argv.pop(1)))
