"""Asks, observes, and tries what can be tried beside: one `Evidence` is filled in as it goes.

The first answer has a small request beside it (OPTIONS, which starts nothing), to see whether the server serves others
meanwhile. If its tokens came in lumps and compressed, one more answer is asked for without compression. Then the
stream that fails on purpose, where the server has one; then, if asked to, one answer is left early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import anyio
import attrs

from streamguard.check.evidence import WAIT, Evidence, Leave, Probe, lumps
from streamguard.check.metrics import GAUGES, running
from streamguard.check.observation import Observation
from streamguard.check.request import Request
from streamguard.check.transport import Broken, Incoming, Silent, Transport, Unreachable
from streamguard.core.jsontext import object_in

__all__ = ["Plan", "examine"]

_SETTLE: Final = 0.25  # seconds until the small request, if nothing came
_PATIENCE: Final = 5.0  # seconds for a request beside the stream's own
_ALONE: Final = 3  # times that it is made when nothing runs; the quickest counts
_BEHIND: Final = 1.0  # seconds for the small request, when the answer is over
_LEFT: Final = 30.0  # seconds for which a left answer is watched, if it were to run longer than that
_LONGER: Final = 1.3  # times what it would have taken to its end
_LOOK: Final = 0.1  # seconds between two looks
_STOPPED: Final = "cancelled"  # the status of a stream that was stopped for its reader's leaving
_MAX_PAGE: Final = 4 << 20


@attrs.frozen
class Plan:
    """What is to be done. `limit` is seconds for each answer, None for no limit; `selftest` and `gauge` are addresses
    where the server does not name its own; `gauge` may end in `#NAME`."""

    repeat: int = 1
    leave: bool = False
    profile: str = "openai"
    limit: float | None = None
    selftest: str | None = None
    gauge: str | None = None


async def examine(
    evidence: Evidence, plan: Plan, transport: Transport, stage: Callable[[str, Observation | None], object]
) -> None:
    """Do all of it. `stage` is told what is done now, and the answer that is being read."""
    evidence.offered_http2 = transport.http2
    for number in range(plan.repeat):
        run = Observation(anyio.current_time(), plan.profile)
        evidence.runs.append(run)
        stage(f"answer {number + 1} of {plan.repeat}" if plan.repeat > 1 else "the answer", run)
        if number == 0:
            await _probed(evidence, run, plan, transport)
            if not run.streamed:
                return
        else:
            await _read(run, evidence.request, transport, plan.limit)
    held = next((run for run in evidence.runs if run.coding != "identity" and lumps(run)), None)
    if held is not None:
        evidence.plain = Observation(anyio.current_time(), plan.profile)
        stage("the answer without compression", evidence.plain)
        await _read(evidence.plain, evidence.request.without_compression(), transport, plan.limit)
    await _selftest(evidence, plan, transport, stage)
    if plan.leave:
        stage("an answer that is left", None)
        await _leave(evidence, plan, transport)


async def _read(
    run: Observation, request: Request, transport: Transport, limit: float | None, came: anyio.Event | None = None
) -> None:
    """One answer to its end. Sets `came` with the first byte."""

    def leaving() -> None:
        run.began = anyio.current_time()
        if limit is not None:
            scope.deadline = run.began + limit  # else what is loaded before the first request is taken from the answer

    with anyio.move_on_after(limit) as scope:
        try:
            async with transport.ask(request, leaving) as incoming:
                _opened(run, incoming, request)
                async for piece in incoming.pieces():
                    run.fed(anyio.current_time(), piece)
                    if came is not None:
                        came.set()
            run.over(anyio.current_time(), clean=True)
        except Unreachable as exc:
            run.refusal = str(exc)
        except Broken as exc:
            run.over(anyio.current_time(), clean=False, why=str(exc))
        except Silent:
            run.over(anyio.current_time(), clean=False, why=f"nothing came for {transport.silence:g} s", silent=True)
    if scope.cancelled_caught:
        run.over(anyio.current_time(), clean=False, why=f"it was left after {limit:g} s", left=True)


def _opened(run: Observation, incoming: Incoming, request: Request) -> None:
    asked = request.header("accept-encoding") or "identity"
    run.opened(anyio.current_time(), incoming.status, incoming.version, incoming.headers, asked)


async def _probed(evidence: Evidence, run: Observation, plan: Plan, transport: Transport) -> None:
    """The first answer, with the small request beside it."""
    came, probe = anyio.Event(), Probe(0.0)
    small = evidence.request.beside("", method="OPTIONS")

    async def beside() -> None:
        with anyio.move_on_after(_SETTLE):
            await came.wait()
        probe.asked = anyio.current_time() - run.began
        evidence.probe = probe
        if await _answered(small, transport):
            probe.answered = anyio.current_time() - run.began

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beside)
        await _read(run, evidence.request, transport, plan.limit, came)
        if not run.streamed:
            tasks.cancel_scope.cancel()
        tasks.cancel_scope.deadline = anyio.current_time() + _BEHIND
    if evidence.probe is None:
        return
    probe.gave_up = anyio.current_time() - run.began
    if (probe.answered or probe.gave_up) - probe.asked >= WAIT:
        for _ in range(_ALONE):
            began = anyio.current_time()
            if await _answered(small, transport):
                probe.alone = min(anyio.current_time() - began, probe.alone or _PATIENCE)


async def _answered(request: Request, transport: Transport) -> bool:
    try:
        with anyio.fail_after(_PATIENCE):
            async with transport.ask(request):
                return True
    except (Unreachable, Broken, Silent, TimeoutError):
        return False


async def _selftest(
    evidence: Evidence, plan: Plan, transport: Transport, stage: Callable[[str, Observation | None], object]
) -> None:
    """The stream that the server fails on purpose."""
    home = next((home for run in evidence.runs if (home := _home(evidence.request, run))), None)
    address = plan.selftest or (f"{home}/selftest" if home else None)
    if address is None:
        evidence.untried = "the server names no stream that fails on purpose (guard.install has one; or --selftest)"
        return
    test = evidence.selftest = Observation(anyio.current_time())
    stage("the stream that fails on purpose", test)
    request = evidence.request.beside(address)
    await _read(test, request, transport, plan.limit or transport.silence)
    if not test.streamed:
        evidence.untried = f"{request.url}: {test.refusal or test.why}"


def _home(request: Request, run: Observation) -> str | None:
    """The address of the endpoints of all streams, where the answer names one of the same origin."""
    return run.resume.rstrip("/") if run.resume is not None and request.owns(run.resume) else None


# ---- leaving ------------------------------------------------------------------------------------


async def _leave(evidence: Evidence, plan: Plan, transport: Transport) -> None:
    """Go after the first token, and see whether the server stops."""
    whole = evidence.streams[-1]
    rest = (whole.ended or 0.0) - (whole.first_token or whole.head or 0.0)
    request = evidence.request
    leave = evidence.leave = Leave("", rest, 0.0)
    before = await _gauge(request, plan, transport)
    run = Observation(anyio.current_time(), plan.profile)
    try:
        async with transport.ask(request) as incoming:
            _opened(run, incoming, request)
            async with aclosing(incoming.pieces()) as pieces:
                async for piece in pieces:
                    run.fed(anyio.current_time(), piece)
                    if run.arrivals or not run.streamed:
                        break
                # Within: to let go of the pieces is to leave, and a server that is quick has stopped by then.
                look = await _look(evidence, plan, transport, run, before, leave)
    except (Unreachable, Broken, Silent) as exc:
        leave.why_not = f"the answer that was to be left did not come ({exc})"
        return
    if look is None:
        return
    gone = anyio.current_time()
    patience = min(max(_LONGER * rest, _SETTLE), _LEFT)
    while (waited := anyio.current_time() - gone) < patience:
        if not await look():
            leave.stopped = anyio.current_time() - gone
            return
        await anyio.sleep(_LOOK)
    leave.waited = waited


async def _look(
    evidence: Evidence, plan: Plan, transport: Transport, run: Observation, before: float | None, leave: Leave
) -> Callable[[], Awaitable[bool]] | None:
    """What tells whether the answer still runs, while it does; None where nothing does."""
    home = _home(evidence.request, run)
    if run.sid is not None and home is not None and plan.gauge is None:
        status = evidence.request.beside(f"{home}/status", Streamguard_Stream=run.sid)

        async def told() -> Mapping[str, Any]:
            return object_in(await _page(status, transport) or "") or {}

        async def generated() -> bool:
            return bool((await told()).get("generated"))

        first = await told()
        if first.get("generated") or first.get("status") == _STOPPED:
            leave.by = "by the stream's own status"
            leave.resumable = evidence.request.comes_back
            return generated
    during = await _gauge(evidence.request, plan, transport)
    if before is None or during is None or during <= before:
        known = ", ".join(name.partition(":")[0].partition("_")[0] for name in GAUGES)
        leave.why_not = (
            f"no page counts what runs (known are the metrics of {known})" if during is None
            else "the gauge did not rise with the answer"
        )  # fmt: skip
        return None

    async def counted() -> bool:
        now = await _gauge(evidence.request, plan, transport)
        return now is None or now > before

    leave.by = "by the server's count of what runs"
    return counted


async def _gauge(request: Request, plan: Plan, transport: Transport) -> float | None:
    address, _, name = (plan.gauge or "/metrics").partition("#")
    page = await _page(request.beside(address, Accept="text/plain"), transport)
    return None if page is None else running(page, name or None)


async def _page(request: Request, transport: Transport) -> str | None:
    """A small page; None where there is none."""
    body = b""
    try:
        with anyio.fail_after(_PATIENCE):
            async with transport.ask(request.without_compression()) as incoming:
                async for piece in incoming.pieces():
                    body += piece
                    if len(body) > _MAX_PAGE:
                        return None
                return body.decode("utf-8", "replace") if incoming.status == 200 else None
    except (Unreachable, Broken, Silent, TimeoutError):
        return None
