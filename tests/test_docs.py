"""Every Python block of README and docs runs, as a reader would run it: a server by uvicorn, a script by Python.

A block's first line names its file. `*app.py` is served, anything else is a script. A block that no test below
runs fails `test_every_block_is_run`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fastapi import FastAPI

from streamguard import SourceFailed, client, tool_call
from streamguard.adapters.fastapi import SealMiddleware, guarded
from streamguard.core.errors import FailedStream
from tests.adapters.aiohttp_serving import serving_aiohttp
from tests.adapters.logged_apps import wait_until
from tests.adapters.servers import serving
from tests.adapters.wsgi_servers import serving_wsgi
from tests.asking import http
from tests.log.redis_server import redis_server
from tests.proxy.fronted import in_front
from tests.upstream.engine import WHOLE, Engine
from tests.upstream.player import CHAT, Player

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")

BLOCKS = {match[1]: match[2] for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8"))}
RUN = {
    "session_app.py", "traced_app.py",
    "app.py", "client.py", "openai_app.py", "story_app.py", "reader.py", "batching_app.py", "tuned_app.py",
    "own_policy.py",
    "chat_app.py", "relay_app.py", "failing_app.py", "early_app.py", "own_server.py", "going_server.py", "by_hand.py",
    "reading.py",
    "metered_app.py", "patient_app.py", "limited_server.py", "thread_app.py", "push_app.py", "queue_source.py",
    "cut_test.py", "disconnect_test.py", "contract_test.py", "decoders_test.py",
    "surviving_app.py", "protected_app.py", "coming_back.py", "shared_app.py",
    "lasting_app.py", "cut_and_back.py", "surviving_reader.py", "saved_app.py", "filed_app.py", "redis_app.py",
    "taken_app.py", "reloaded_app.py", "ai_sdk_app.py", "completing_app.py",
    "compressed_app.py", "compressed_reader.py",
    "granting_app.py", "granting_reader.py", "windowed_app.py",
    "converted_app.py", "events_app.py", "limited_reading.py", "resuming.py", "restarted.py",
    "flask_app.py", "quick_app.py", "wsgi_app.py", "django_app.py",
    "deployed_app.py", "draining_app.py", "logged_app.py", "loaded_policy.py",
    "model_server_app.py", "looking_app.py", "ruled_app.py", "outliving_app.py", "aiohttp_app.py", "socket_app.py",
    "browser_app.py", "marked_app.py", "frames_reader.py", "anthropic_app.py", "converted_handler.py",
    "watched_app.py", "counting_app.py", "recorded_app.py", "vllm_guard.py", "fake_vllm_app.py", "counting.py",
    "spans_app.py", "spans_reader.py", "legs_app.py", "live_app.py",
}  # fmt: skip


@contextlib.contextmanager
def served(folder: Path, name: str, *arguments: str, **replaced: str) -> Iterator[str]:
    """A block served by uvicorn, with further `arguments`, on a free port; its base URL."""
    text = BLOCKS[name]
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "uvicorn", f"{name.removesuffix('.py')}:app", "--port", "0", "--no-access-log"]
    command += arguments
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if match := re.search(r"running on (http://[\d.:]+)", line):
                yield match[1]
                break
        else:
            pytest.fail(f"{name} did not start")
    finally:
        process.terminate()
        rest = process.communicate(timeout=60)[1]
        (folder / "stderr").write_text(rest, encoding="utf-8")  # what it logged after it had started


def ran(folder: Path, name: str, *arguments: str, **replaced: str) -> str:
    """What a block prints, run as a script."""
    text = BLOCKS[name]
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / name).write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run(
        [sys.executable, "-W", "error", name, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_block_is_run() -> None:
    assert set(BLOCKS) == RUN
    unnamed = [page.name for page in PAGES if re.search(r"^```python\n(?!# \S+\.py\n)", page.read_text(), re.MULTILINE)]
    assert unnamed == []


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text(encoding="utf-8"))}
    assert [page for page in PAGES[1:] if page not in linked and page != index and page.parent.name != "proofs"] == []


def test_the_readme_endpoint_and_client_work_as_printed(tmp_path: Path) -> None:
    with served(tmp_path, "app.py") as url:
        out = ran(tmp_path, "client.py", **{"http://127.0.0.1:8000": url})
    assert re.fullmatch(r"Hello from a stream COMPLETE, 5 frames, crc [0-9a-f]{8}\n", out)


def test_a_cut_answer_of_the_readmes_surviving_endpoint_goes_on(tmp_path: Path) -> None:
    words, text, last = [f"word-{number}" for number in range(20)], "", ""
    headers = {"x-user": "ann", "streamguard": "v=1"}
    with served(tmp_path, "surviving_app.py") as url:
        with http.stream("POST", f"{url}/chat", json={"text": " ".join(words)}, headers=headers) as response:
            for line in response.iter_lines():
                last = line[4:] if line.startswith("id: ") else last
                text += line[7:-1] if line.startswith('data: "') else ""
                if "word-2" in text:
                    break
        rest = http.get(f"{url}/streams", headers={**headers, "last-event-id": last}).text
        stranger = http.get(f"{url}/streams", headers={**headers, "x-user": "bob", "last-event-id": last})
    text += "".join(re.findall(r'^data: "(.*)"$', rest, re.MULTILINE))
    assert (text, stranger.status_code) == ("".join(f"{word} " for word in words), 404)
    assert '"status":"complete"' in rest


def test_the_readmes_client_reads_the_surviving_endpoint_with_the_lines_that_the_readme_changes(tmp_path: Path) -> None:
    readme = PAGES[0].read_text(encoding="utf-8")
    found = re.search(r"^-(    async with client\.stream.*)\n\+(.*)\n\+(.*)$", readme, re.MULTILINE)
    assert found is not None
    with served(tmp_path, "surviving_app.py") as url:
        out = ran(tmp_path, "client.py", **{found[1]: f"{found[2]}\n{found[3]}", "http://127.0.0.1:8000": url})
    assert out.startswith("Hello from a stream COMPLETE, 5 frames")


@pytest.mark.parametrize("name", ["openai_app.py", "chat_app.py"])
def test_an_openai_client_reads_the_chat_endpoints(tmp_path: Path, name: str) -> None:
    with served(tmp_path, name) as url:
        assert chat(url) == "one two three "


def test_the_chat_endpoint_answers_in_one_piece_what_does_not_ask_for_a_stream(tmp_path: Path) -> None:
    with served(tmp_path, "chat_app.py") as url, openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0
    ) as sdk:
        messages: Any = [{"role": "user", "content": "one two three"}]
        answer = sdk.chat.completions.create(model="tiny", messages=messages)
    assert answer.choices[0].message.content == "one two three "
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize(("body", "status"), [
    (b"{bad", 422), (b'{"messages": [{"role": "user"}]}', 422),
    (b'{"messages": [{"role": "user", "content": "hi"}], "stream": false}', 400),
])  # fmt: skip
def test_a_bad_request_to_the_readmes_chat_endpoint_keeps_its_status(
    tmp_path: Path, body: bytes, status: int
) -> None:
    with served(tmp_path, "openai_app.py") as url:
        headers = {"content-type": "application/json"}
        assert http.post(f"{url}/v1/chat/completions", content=body, headers=headers).status_code == status


def test_a_converted_endpoint_serves_bare_text_and_one_of_ready_made_events_its_events(tmp_path: Path) -> None:
    with served(tmp_path, "converted_app.py") as url, client.stream_sync(
        "POST", f"{url}/chat", json={"text": "Hello you"}
    ) as answer:
        assert answer.read() == "Hello you "
    with served(tmp_path, "events_app.py") as url:
        events = http.get(f"{url}/steps")
        with client.stream_sync("GET", f"{url}/steps") as answer:
            assert [frame.data for frame in answer.frames()] == [f'{{"number": {number}}}' for number in range(3)]
        tokens = http.get(f"{url}/tokens").text
    assert re.findall(r"^event: token\n(?:: .*\n)?data: (\w+)$", tokens, re.MULTILINE) == ["Hello", "you"]
    assert events.text.count("event: step\n") == 3
    assert events.headers["streamguard"]


def test_a_relay_passes_an_upstream_on(tmp_path: Path) -> None:
    with served(tmp_path, "chat_app.py") as upstream, served(
        tmp_path, "relay_app.py", **{"http://127.0.0.1:8100": upstream}
    ) as url:
        assert chat(url) == "one two three "
        body = {"model": "tiny", "messages": [{"role": "user", "content": "one two"}]}
        whole = http.post(f"{url}/v1/chat/completions", json=body)
        assert whole.json()["choices"][0]["message"]["content"] == "one two "


def chat(url: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        messages = [{"role": "user", "content": "one two three"}]
        stream = sdk.chat.completions.create(model="tiny", messages=messages, stream=True)  # type: ignore[call-overload]
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_the_tutorial_ends_as_it_says(tmp_path: Path) -> None:
    with served(tmp_path, "story_app.py") as url:
        story = ran(tmp_path, "reader.py", f"{url}/story")
        broken = ran(tmp_path, "reader.py", f"{url}/broken")
        silent = ran(tmp_path, "reader.py", f"{url}/silent")
        read = ran(tmp_path, "reading.py", f"{url}/story")
        twice = ran(tmp_path, "limited_reading.py", f"{url}/story", f"{url}/story?words=1")
    assert re.fullmatch(r"(word-\d ){5}\nCOMPLETE, 6 frames, crc [0-9a-f]{8}\n", story)
    assert broken == "this is the first half, \nthe server says: failed (source_error)\n"
    assert silent == "and then \nthe server says: stalled (stalled)\n"
    assert read.startswith("word-0 ")
    assert "COMPLETE" in read
    assert twice == "word-0 word-1 word-2 word-3 word-4 \nword-0 \n"


def test_a_reader_that_resumes_reads_a_stream_that_cannot_be_resumed_too(tmp_path: Path) -> None:
    with served(tmp_path, "app.py") as url:
        read = ran(tmp_path, "resuming.py", f"{url}/chat")
    assert re.search(r"COMPLETE, \d+ frames, crc [0-9a-f]{8}\n$", read)


def test_batching_sends_fewer_frames_and_all_the_text(tmp_path: Path) -> None:
    with served(tmp_path, "batching_app.py") as url, client.stream_sync("GET", f"{url}/count") as answer:
        assert answer.read() == "".join(f"{number} " for number in range(100))
    assert answer.receipt.frames < 50


def test_a_compressed_answer_is_read_as_printed(tmp_path: Path) -> None:
    with served(tmp_path, "compressed_app.py") as url:
        out = ran(tmp_path, "compressed_reader.py", **{"http://127.0.0.1:8000": url})
        plain = http.get(f"{url}/count", headers={"accept-encoding": "gzip"})
    assert out == "gzip COMPLETE 290\n"
    assert "content-encoding" not in plain.headers


def test_the_tuned_endpoint_sends_all_the_text(tmp_path: Path) -> None:
    with served(tmp_path, "tuned_app.py") as url, client.stream_sync("GET", f"{url}/count") as answer:
        assert answer.read() == "".join(f"{number} " for number in range(100))
    assert answer.receipt.frames <= 100


def test_a_chosen_failure_reaches_the_reader(tmp_path: Path) -> None:
    with served(tmp_path, "failing_app.py") as url, client.stream_sync("GET", f"{url}/busy") as answer:
        with pytest.raises(FailedStream) as raised:
            answer.read()
    assert raised.value.code == "overloaded"
    assert raised.value.received == "one moment "


def test_an_early_failure_keeps_its_status(tmp_path: Path) -> None:
    with served(tmp_path, "early_app.py") as url:
        assert http.get(f"{url}/secret").status_code == 403


def test_the_metered_endpoint_serves_and_logs_what_was_delivered(tmp_path: Path) -> None:
    with served(tmp_path, "metered_app.py") as url:
        for headers in ({}, {"X-Request-ID": "r1"}):
            with client.stream_sync("GET", f"{url}/answer", headers=headers) as answer:
                assert answer.read() == "Hello world"
    log = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert "INFO:meter:None: complete, 2 items, delivered: unknown, usage None" in log
    assert "INFO:meter:r1: complete, 2 items" in log


def test_threads_and_callbacks_serve(tmp_path: Path) -> None:
    with served(tmp_path, "thread_app.py") as url, client.stream_sync("GET", f"{url}/blocking") as answer:
        assert answer.read() == "word-0 word-1 word-2 word-3 word-4 "
    with served(tmp_path, "push_app.py") as url:
        for prompt in ("one two three ", "x " * 6000):  # several times what its buffer holds
            with client.stream_sync("GET", f"{url}/pushed", params={"prompt": prompt}) as answer:
                assert answer.read() == prompt
        with client.stream_sync("GET", f"{url}/pushed", params={"prompt": "half break"}) as answer:
            with pytest.raises(FailedStream) as raised:
                answer.read()
    assert (raised.value.received, raised.value.code) == ("half ", "source_error")
    assert ran(tmp_path, "queue_source.py") == "['one ', 'two ']\n"


def test_a_patient_endpoint_serves(tmp_path: Path) -> None:
    with served(tmp_path, "patient_app.py") as url, client.stream_sync("GET", f"{url}/story") as answer:
        assert answer.read().startswith("word 0 ")


def test_a_user_who_has_all_of_its_streams_is_told_to_come_back(tmp_path: Path) -> None:
    """As in the page, with smaller limits and a story that waits for its second word."""
    smaller = {
        "max_per_principal=4": "max_per_principal=1, max_waiting=0",
        "        yield f": "        await __import__('asyncio').sleep(number * 60)\n        yield f",
    }
    with served(tmp_path, "protected_app.py", **smaller) as url:
        ann, bob = {"x-user": "ann"}, {"x-user": "bob"}
        with http.stream("GET", f"{url}/story", headers=ann) as first:
            lines = first.iter_lines()  # kept: httpx closes a stream whose iterator is dropped
            assert any("word 0" in line for line in lines)
            with http.stream("GET", f"{url}/story", headers=ann) as again:
                assert again.status_code == 429
                assert json.loads(again.read())["code"] == "full"
            with http.stream("GET", f"{url}/story", headers=bob) as other:
                assert other.status_code == 200
            assert int(again.headers["retry-after"]) in (2, 3, 4)
            told = "print(2 <= error.retry_after <= 4, flush=True); time.sleep(0.01)"
            script = BLOCKS["coming_back.py"].replace("time.sleep(error.retry_after)", told)
            command = [sys.executable, "-c", script, f"{url}/story?words=1"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coming:
                assert coming.stdout is not None
                assert coming.stdout.readline() == "True\n"
                first.close()
                assert re.fullmatch(r"(True\n)*word 0 \n", coming.stdout.read())
            assert coming.returncode == 0


def test_a_guard_and_a_plain_endpoint_share_their_limits(tmp_path: Path) -> None:
    with served(tmp_path, "shared_app.py") as url:
        ann = {"x-user": "ann", "streamguard": "v=1"}
        assert '"status":"complete"' in http.post(f"{url}/chat", params={"text": "a b"}, headers=ann).text
        assert "all is well" in http.get(f"{url}/summary").text
        refused = {"full": 0, "waited_too_long": 0, "left": 0}
        idle = {"streams": 0, "waiting": 0, "refused": refused}
        wait_until(lambda: http.get(f"{url}/load").json() == idle)  # a slot is free once its source is closed


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_USER_TIMEOUT is Linux's")
def test_the_system_drops_a_reader_that_does_not_read(tmp_path: Path) -> None:
    """On a server that lets nobody reach its transport."""
    (tmp_path / "limited_server.py").write_text(BLOCKS["limited_server.py"], encoding="utf-8")
    command = [sys.executable, "-c", "import limited_server; limited_server.main(0, 500)"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with client.stream_sync("GET", f"{url}/story") as answer:
                assert answer.read().startswith("word 0 ")
            address = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
            with socket.socket() as reader:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.connect(address)
                reader.sendall(b"GET /story?words=100000000 HTTP/1.1\r\nhost: x\r\n\r\n")
                open_ones = [_established(address[1])]
                deadline = time.monotonic() + 20
                while open_ones[-1] and time.monotonic() < deadline:
                    time.sleep(0.05)
                    open_ones.append(_established(address[1]))
                assert open_ones[0] >= 1
                assert open_ones[-1] == 0
        finally:
            server.kill()


def _established(port: int) -> int:
    """Connections of a local port that its side holds open."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_the_middleware_looks_and_then_guards_as_the_page_says(tmp_path: Path) -> None:
    with served(tmp_path, "looking_app.py") as url:
        whole, cut = (http.get(f"{url}/story", params={"words": words}) for words in (3, 20))
        found = http.get(f"{url}/streams-report").json()
    assert whole.text.endswith("data: [DONE]\n\n")
    assert "data: [DONE]" not in cut.text
    ends = {"by_marker": 1, "by_own_end": 0, "hint": ""}
    assert found["endpoints"] == {"GET /story": {"streams": 2, "refused": 1, **ends}}
    told = "a stream of GET /story would be refused a clean end: failed: unproven_end: the provider's stream"
    assert told in (tmp_path / "stderr").read_text(encoding="utf-8")
    turned = {"GuardMiddleware(app, report": 'GuardMiddleware(app, mode="guard", report'}
    with served(tmp_path, "looking_app.py", **turned) as url:
        with client.stream_sync("GET", f"{url}/story") as answer:
            assert answer.read() == "word-0 word-1 word-2 "
        with client.stream_sync("GET", f"{url}/story", params={"words": 20}) as answer, pytest.raises(FailedStream):
            answer.read()


def test_the_middlewares_rules_differ_by_path_as_the_page_says(tmp_path: Path) -> None:
    with served(tmp_path, "ruled_app.py") as url:
        assert ".complete" in http.get(f"{url}/ticks").text
        assert http.get(f"{url}/alone").text.count(":") == 4
        with pytest.raises(httpx.RemoteProtocolError):
            http.get(f"{url}/strict")


def test_a_marker_made_by_hand_proves_the_end_where_the_middleware_is_told_so(tmp_path: Path) -> None:
    with served(tmp_path, "marked_app.py") as url:
        whole = http.get(f"{url}/story").text
        assert "data: [DONE]" in whole
        assert ".complete" in whole
        with pytest.raises(httpx.RemoteProtocolError):
            http.get(f"{url}/story?fault=1")
    told = {", end=lambda event: event.data == \"[DONE]\"": ""}
    with served(tmp_path, "marked_app.py", **told) as url:
        assert ".complete" in http.get(f"{url}/story?fault=1").text


def test_what_streams_already_outlives_its_connection_as_the_page_says(tmp_path: Path) -> None:
    last, data = "", ""
    headers = {"accept": "text/event-stream"}
    with served(tmp_path, "outliving_app.py") as url:
        with http.stream("GET", f"{url}/story", headers=headers) as first:
            for line in first.iter_lines():
                last = line[4:] if line.startswith("id: ") else last
                data += f"{line}\n" if line.startswith("data: ") else ""
                if "word-2" in data:
                    break
        rest = http.get(f"{url}/streams", headers={**headers, "last-event-id": last}).text
        assert http.get(f"{url}/ready").status_code == 200
    found = re.findall(r"^data: (word-\d+)$", data + rest, re.MULTILINE)
    assert found == [f"word-{number}" for number in range(20)]


def test_a_session_and_a_span_are_open_for_the_whole_stream(tmp_path: Path) -> None:
    with served(tmp_path, "session_app.py") as url, client.stream_sync("GET", f"{url}/words") as answer:
        assert answer.read() == "word-0 word-1 word-2 "
    with served(tmp_path, "traced_app.py") as url, client.stream_sync("GET", f"{url}/traced") as answer:
        assert answer.read() == "0:generate 1:generate 2:generate "


def test_the_handlers_of_aiohttp_stream(tmp_path: Path) -> None:
    module: dict[str, Any] = {"__name__": "aiohttp_app"}
    exec(BLOCKS["aiohttp_app.py"], module)
    with serving_aiohttp(module["app"]) as server:
        for path in ("chat", "lasting"):
            with client.stream_sync("POST", f"{server.url}/{path}", json={"text": "word by word"}) as answer:
                assert answer.read() == "word by word "
            assert http.post(f"{server.url}/{path}", content=b"no JSON").status_code == 500  # as the page says
    module = {"__name__": "converted_handler"}
    exec(BLOCKS["converted_handler.py"], module)
    with serving_aiohttp(module["app"]) as server:
        with client.stream_sync("POST", f"{server.url}/chat", json={"text": "word by word"}) as answer:
            assert answer.read() == "word by word "


def test_the_views_of_flask_and_a_function_of_the_environ_stream(tmp_path: Path) -> None:
    for name, paths in ("flask_app.py", ("chat", "lasting")), ("quick_app.py", ("quick",)), ("wsgi_app.py", ("",)):
        module: dict[str, Any] = {"__name__": name}
        exec(BLOCKS[name], module)
        with serving_wsgi("waitress", module["app"]) as url:
            for path in paths:
                with client.stream_sync("POST", f"{url}/{path}", json={"text": "word by word"}) as answer:
                    assert "word by word" in answer.read()
                if path:
                    bad = http.post(f"{url}/{path}", content=b"no JSON", headers={"content-type": "application/json"})
                    assert bad.status_code == 400


def test_the_views_of_django_stream(tmp_path: Path) -> None:
    with served(tmp_path, "django_app.py") as url:
        for path in ("chat", "lasting"):
            with client.stream_sync("POST", f"{url}/{path}", json={"text": "word by word"}) as answer:
                assert answer.read() == "word by word "
            assert http.post(f"{url}/{path}", content=b"no JSON").status_code == 500  # as the page says
def test_a_socket_has_a_whole_answer(tmp_path: Path) -> None:
    reader = ROOT / "examples/websocket_reader.py"
    with served(tmp_path, "socket_app.py") as url:
        for path in ("chat", "lasting"):
            command = [sys.executable, str(reader), f"{url}/{path}", "word", "by", "word"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.stdout.startswith("word by word \nCOMPLETE"), done.stderr


def test_the_scripts_print_what_the_pages_say(tmp_path: Path) -> None:
    assert ran(tmp_path, "own_policy.py") == "['The quick ', 'brown fox']\n"
    assert ran(tmp_path, "loaded_policy.py") == "AnyOf: it loses nothing\n"
    assert ran(tmp_path, "by_hand.py") == "Nothing is lost here\nVerdict.COMPLETE\n"
    assert ran(tmp_path, "own_server.py").rstrip().endswith("0")
    assert '"code":"shutdown"' in ran(tmp_path, "going_server.py", **{"grace=20": "grace=0.05"})
    assert ran(tmp_path, "reading.py") == ""


def test_the_tests_of_an_endpoint_pass_as_the_page_says(tmp_path: Path) -> None:
    assert re.fullmatch(r"fin: noticed, after \d+\nreset: noticed, after \d+\n", ran(tmp_path, "cut_test.py"))
    assert ran(tmp_path, "disconnect_test.py") == "stopped\nwaited\n"
    assert ran(tmp_path, "contract_test.py") == "answer\n"
    lines = ran(tmp_path, "decoders_test.py").splitlines()
    assert [r"a\u2028b" in line for line in lines] == [True, False, True]


def test_the_reference_of_the_test_kit_names_everything() -> None:
    from streamguard import testing
    from streamguard.testing import strategies

    page = (ROOT / "docs/reference/testing.md").read_text(encoding="utf-8")
    assert [name for name in (*testing.__all__, *strategies.__all__) if f"`{name}" not in page] == []


def test_the_reference_names_everything_public() -> None:
    import streamguard
    from streamguard.core import errors

    api = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    names = {*streamguard.__all__, *client.__all__, "guarded", "GuardedResponse", "GuardedAnswer", "AnswerOptions"}
    assert [name for name in sorted(names) if f"{name}" not in api] == []
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    helpers = {"Failure", "failure_from"}
    assert [name for name in errors.__all__ if name not in page and name not in helpers] == []


def test_a_stream_survives_as_the_tutorial_says(tmp_path: Path) -> None:
    words = "".join(f"word-{number} " for number in range(20))
    with served(tmp_path, "lasting_app.py") as url:
        back = ran(tmp_path, "cut_and_back.py", url)
        read = ran(tmp_path, "surviving_reader.py", url)
        reloaded = http.get(f"{url}/streams?name=seven", headers={"x-user": "ann"})
        restarted = ran(tmp_path, "restarted.py", url, str(words.index("-7 ")))
    assert re.fullmatch(rf"{words[words.index('-7 '):]}COMPLETE, 21 frames, crc [0-9a-f]{{8}}\n", restarted)
    assert back == words.replace("word-3 ", "| cut | word-3 ") + "(the end)\n404 unknown_stream\n"
    assert re.fullmatch(rf"{words}COMPLETE, 21 frames, crc [0-9a-f]{{8}}\n", read)
    assert "".join(re.findall(r'^data: "(.*)"$', reloaded.text, re.MULTILINE)) == words


def test_a_reader_that_grants_credit_reads_the_whole_and_a_windowed_endpoint_serves(tmp_path: Path) -> None:
    words = "".join(f"word-{number} " for number in range(200))
    with served(tmp_path, "granting_app.py") as url:
        read = ran(tmp_path, "granting_reader.py", f"{url}/story")
    assert re.fullmatch(rf"{words}COMPLETE, 201 frames, crc [0-9a-f]{{8}}\n", read)
    with served(tmp_path, "windowed_app.py") as url, client.stream_sync("GET", f"{url}/story") as answer:
        assert answer.read() == words


def test_the_saved_chat_is_one_generation_under_one_key(tmp_path: Path) -> None:
    with served(tmp_path, "saved_app.py") as url:
        headers = {"authorization": "Bearer secret-of-ann", "idempotency-key": "k"}
        answers = [http.post(f"{url}/chats/7", json={"text": "a b"}, headers=headers) for _ in range(2)]
        other = http.post(f"{url}/chats/7", json={"text": "c"}, headers=headers)
        stranger = http.get(f"{url}/streams?name=7")
    sids = {re.findall(r'cursor="([^.]+)', answer.headers["streamguard"])[0] for answer in answers}
    assert (len(sids), other.status_code, stranger.status_code) == (1, 422, 403)


TAKEN = {"x-user": "ann", "streamguard": "v=1"}


def test_a_stream_whose_process_is_killed_is_taken_over(tmp_path: Path) -> None:
    pause = "            yield word\n"
    quick = {"ttl=15": "ttl=1", pause: f"{pause}            await asyncio.sleep(0.02)\n"}
    quick["from fastapi import"] = "import asyncio\nimport os\nfrom fastapi import"
    quick["guard.install("] = "app.get('/pid')(os.getpid)\nguard.install("
    text = ""
    with served(tmp_path, "taken_app.py", **quick) as one, served(tmp_path, "taken_app.py", **quick) as other:
        process = int(http.get(f"{one}/pid").text)
        last = ""
        with http.stream("POST", f"{one}/countdown/100", headers=TAKEN) as first:
            with contextlib.suppress(httpx.TransportError):
                for line in first.iter_lines():
                    last = line[4:] if line.startswith("id: ") else last
                    text += line[7:-1] if line.startswith('data: "') else ""
                    if text.endswith("70 ") and process:
                        os.kill(process, signal.SIGKILL)
        there = http.get(f"{other}/streams", headers={**TAKEN, "last-event-id": last}, timeout=30.0)
    text += "".join(re.findall(r'^data: "(.*)"$', there.text, re.MULTILINE))
    assert text == "".join(f"{number} " for number in range(100, 0, -1))
    assert '"status":"complete"' in there.text


def test_a_stream_whose_process_is_told_to_go_is_gone_on_with_by_the_next_one(tmp_path: Path) -> None:
    quick = {"grace=20": "grace=0.2", "import asyncio\n": "import asyncio\nimport os\n"}
    quick["guard.install("] = "app.get('/pid')(os.getpid)\nguard.install("
    text, last = "", ""
    with served(tmp_path, "deployed_app.py", **quick) as one, served(tmp_path, "deployed_app.py", **quick) as other:
        assert http.get(f"{one}/ready").status_code == 200
        process = int(http.get(f"{one}/pid").text)
        with http.stream("GET", f"{one}/count/60", headers=TAKEN) as first:
            with contextlib.suppress(httpx.TransportError):
                for line in first.iter_lines():
                    last = line[4:] if line.startswith("id: ") else last
                    text += line[7:-1] if line.startswith('data: "') else ""
                    if text.endswith(" 3 "):
                        os.kill(process, signal.SIGTERM)
        there = http.get(f"{other}/streams", headers={**TAKEN, "last-event-id": last}, timeout=30.0)
    assert 4 <= len(text.split()) < 60
    text += "".join(re.findall(r'^data: "(.*)"$', there.text, re.MULTILINE))
    assert text == "".join(f"{number} " for number in range(60))
    assert '"status":"complete"' in there.text


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs HAProxy")
def test_haproxy_takes_the_configuration_of_the_deploy_page(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/deploy-without-cutting-answers.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```haproxy\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "haproxy.cfg").write_text(text, encoding="utf-8")
    command = ["haproxy", "-c", "-f", str(tmp_path / "haproxy.cfg")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    assert "WARNING" not in found.stderr


def test_a_process_that_was_asked_to_drain_says_so_refuses_new_streams_and_serves_those_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAIN_SECRET", "secret")
    with served(tmp_path, "draining_app.py") as url:
        with http.stream("POST", f"{url}/story", headers=TAKEN) as story:
            lines = story.iter_lines()
            assert any("word-0 " in line for line in lines)
            wrong: list[Any] = [{}, {"x-drain-secret": b"\xe9"}]
            assert [http.post(f"{url}/drain", headers=given).status_code for given in wrong] == [403, 403]
            assert http.get(f"{url}/ready").status_code == 200
            asked = http.post(f"{url}/drain", headers={"x-drain-secret": "secret"})
            assert (asked.status_code, asked.json()) == (202, {"ready": False})
            assert http.get(f"{url}/ready").status_code == 503
            assert http.post(f"{url}/story", headers=TAKEN).status_code == 503
            rest = "".join(lines)
    assert "word-19 " in rest
    assert '"status":"complete"' in rest


LOGGED = (
    r"(?m)^[\d-]+ [\d:,]+ ERROR streamguard: "
    r"stream \S+ of GET /broken ended as failed after 1 items: source_error: RuntimeError$"
)
UVICORNS = "ASGI callable returned without completing response."


@pytest.mark.parametrize("how", ["basicConfig", "--log-config", "neither"])
def test_the_log_is_seen_as_the_page_says(tmp_path: Path, how: str) -> None:
    page = (ROOT / "docs/how-to/see-the-log.md").read_text(encoding="utf-8")
    (tmp_path / "logging.json").write_text(re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    arguments = ["--log-config", "logging.json"] if how == "--log-config" else []
    bare = {} if how == "basicConfig" else {"logging.basicConfig(": "dict(", "quiet_server_logs()": "pass"}
    with served(tmp_path, "logged_app.py", *arguments, **bare) as url:
        with contextlib.suppress(httpx.RemoteProtocolError):
            http.get(f"{url}/broken", headers=TAKEN)
        with contextlib.suppress(httpx.RemoteProtocolError):  # an EventSource of a stream that is not here
            asking = {"accept": "text/event-stream", "last-event-id": f"{'A' * 22}.3.9.00000000", "x-user": "ann"}
            http.get(f"{url}/streams", headers=asking)
    log = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert (re.search(LOGGED, log) is not None) == (how != "neither"), log
    assert "ended as failed after 1 items" in log
    assert (UVICORNS in log) == (how != "basicConfig"), log


def test_a_text_of_a_completions_server_goes_on_where_it_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"ttl=15": "ttl=1", '"tiny"': '"hangs"', "guard.install(": "app.get('/pid')(os.getpid)\nguard.install("}
    engine, text, last = Engine(), "", ""
    with serving(engine.app) as upstream:
        monkeypatch.setenv("ENGINE", f"{upstream.url}/v1")
        app = "completing_app.py"
        with served(tmp_path, app, **quick) as one, served(tmp_path, app, **quick) as two:
            process = int(http.get(f"{one}/pid").text)
            with http.stream("POST", f"{one}/stories/7", headers=TAKEN) as first:
                with contextlib.suppress(httpx.TransportError):
                    for line in first.iter_lines():
                        last = line[4:] if line.startswith("id: ") else last
                        text += line[7:-1] if line.startswith('data: "') else ""
                        if text == WHOLE[: len("w0é w1é ")]:
                            os.kill(process, signal.SIGKILL)
            there = http.get(f"{two}/streams", headers={**TAKEN, "last-event-id": last}, timeout=30.0)
    text += "".join(re.findall(r'^data: "(.*)"$', there.text, re.MULTILINE))
    assert text == WHOLE
    assert '"status":"complete","finish_reason":"stop"' in there.text
    assert [asked["prompt"] for asked in engine.asked] == ["Count: ", "Count: w0é w1é "]


def test_a_model_server_that_stops_in_the_middle_is_a_failure_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = Player()
    with serving(player.app) as upstream:
        monkeypatch.setenv("ENGINE", f"{upstream.url}/v1")
        with served(tmp_path, "model_server_app.py") as url:
            player.plays(*CHAT)
            body = {"model": "m", "messages": [], "stream": True}
            chunks = http.post(f"{url}/v1/chat/completions", json=body).text
            with client.stream_sync("POST", f"{url}/chat", json={"text": "Hello"}) as answer:
                assert answer.read() == "Hello"
            player.plays(*CHAT[:2])
            with client.stream_sync("POST", f"{url}/chat", json={"text": "Hello"}) as answer:
                with pytest.raises(FailedStream, match="upstream_truncated"):
                    answer.read()
            player.plays('{"choices": []}')
            whole = http.post(f"{url}/v1/chat/completions", json={"model": "m", "messages": []})
            statuses = []
            for status in (429, 400):
                player.plays("no", status=status)
                statuses.append(http.post(f"{url}/v1/chat/completions", json=body).status_code)
    assert (whole.text, statuses) == ('{"choices": []}', [503, 500])
    assert re.findall("^data: .*", chunks, re.MULTILINE) == [event.strip() for event in CHAT]
    assert player.asked[1]["authorization"] == "Bearer key"


def test_an_anthropic_client_reads_the_messages_endpoint_with_its_model_and_usage(tmp_path: Path) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "one two three"}]}
    with served(tmp_path, "anthropic_app.py") as url:
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as sdk:
            with sdk.messages.stream(**asked) as stream:
                streamed = stream.get_final_message()
            answers = [streamed, sdk.messages.create(**asked)]
    for answer in answers:
        assert [part.text for part in answer.content if part.type == "text"] == ["one two three "]
        assert (answer.model, answer.stop_reason) == ("tiny", "end_turn")
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 3)


def test_text_and_tool_calls_are_read_in_one_loop_as_the_page_says(tmp_path: Path) -> None:
    app = FastAPI()

    @app.get("/{fault}")
    @guarded
    async def answer(fault: int) -> AsyncIterator[Any]:
        yield "Let me see. "
        yield tool_call(id="c1", name="weather", arguments='{"city": "Paris"}')
        if fault:
            raise SourceFailed("broke", "it broke")

    app.add_middleware(SealMiddleware)
    with serving(app) as server:
        assert ran(tmp_path, "frames_reader.py", f"{server.url}/0") == "Let me see. weather {'city': 'Paris'}\n"
        with pytest.raises(AssertionError, match="FailedStream"):  # and no tool was run
            ran(tmp_path, "frames_reader.py", f"{server.url}/1")


@pytest.mark.parametrize("name", ["Guarded", "Resumable"])
def test_the_middlewares_for_vllm_pass_no_marker_behind_its_error(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "streamguard")  # the block sets it, and it is put back behind this test
    module: dict[str, Any] = {"__name__": "vllm_guard"}
    exec(BLOCKS["vllm_guard.py"], module)
    monkeypatch.setenv("VLLM_API_KEY", "key")
    player, died = Player(), 'data: {"error": {"message": "EngineCore encountered an issue", "code": 500}}\n\n'
    with serving(module[name](player.app)) as server:
        url, headers = f"{server.url}/v1/chat/completions", {"authorization": "Bearer key"}
        player.plays(*CHAT)
        assert "data: [DONE]" in http.post(url, json={}, headers=headers).text
        stranger = http.post(url, json={}, headers={"authorization": "Bearer other"})
        player.plays(*CHAT[:2], died, "data: [DONE]\n\n")
        with http.stream("POST", url, json={}, headers=headers) as response:
            found = ""
            with pytest.raises(httpx.RemoteProtocolError):
                for text in response.iter_text():
                    found += text
    assert stranger.status_code == {"Guarded": 200, "Resumable": 403}[name]  # vLLM itself has a key, and refuses it
    assert died.partition(": ")[2] in found  # the event's data, to the byte
    assert "[DONE]" not in found


def test_a_model_server_that_dies_is_noticed_through_the_proxy_as_the_tutorial_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial" / "guard-a-vllm.md").read_text(encoding="utf-8")
    unguarded, guarded = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    with served(tmp_path, "fake_vllm_app.py") as url, in_front(int(url.rpartition(":")[2])) as proxy:
        assert [http.get(f"{url}{path}").status_code for path in ("/metrics", "/v1/chat/completions")] == [404, 404]
        assert ran(tmp_path, "counting.py", url) == unguarded
        assert ran(tmp_path, "counting.py", proxy.url) == guarded


def test_an_answer_that_was_cut_is_read_on_with_curl_as_the_tutorial_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial" / "guard-a-vllm.md").read_text(encoding="utf-8")
    [lines] = re.findall(r"^  ```sh\n(.*?)^  ```", page, re.MULTILINE | re.DOTALL)
    with served(tmp_path, "fake_vllm_app.py") as url, in_front(int(url.rpartition(":")[2])) as proxy:
        script = lines.replace("http://127.0.0.1:8080", proxy.url)
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    rest = done.stdout
    found = [re.findall(r'"content": ?"(\d+) "', part) for part in ((tmp_path / "cut.txt").read_text(), rest)]
    assert [number for part in found for number in part] == [str(number) for number in range(1, 11)]
    assert all(found)
    assert "data: [DONE]" in rest


def test_a_stream_in_a_file_is_read_by_another_process(tmp_path: Path) -> None:
    words = "".join(f"word-{number} " for number in range(20))
    with served(tmp_path, "filed_app.py") as one, served(tmp_path, "filed_app.py") as other:
        headers = {"x-user": "ann", "streamguard": "v=1"}
        with http.stream("POST", f"{one}/story?chat=7", headers=headers) as first:
            next(line for line in first.iter_lines() if "word-0" in line)
            there = http.get(f"{other}/streams?name=7", headers=headers)
    assert "".join(re.findall(r'^data: "(.*)"$', there.text, re.MULTILINE)) == words


def test_a_stream_in_redis_is_read_by_another_process(tmp_path: Path) -> None:
    words = "".join(f"word-{number} " for number in range(20))
    with redis_server(tmp_path, tcp=True) as server:
        there = {"redis://localhost:6379/0": server.url}
        with served(tmp_path, "redis_app.py", **there) as one, served(tmp_path, "redis_app.py", **there) as other:
            headers = {"x-user": "ann", "streamguard": "v=1"}
            with http.stream("POST", f"{one}/story?chat=7", headers=headers) as first:
                next(line for line in first.iter_lines() if "word-0" in line)
                answer = http.get(f"{other}/streams?name=7", headers=headers)
    assert "".join(re.findall(r'^data: "(.*)"$', answer.text, re.MULTILINE)) == words


def test_what_is_watched_is_counted_told_and_recorded(tmp_path: Path) -> None:
    with served(tmp_path, "watched_app.py") as url:
        with client.stream_sync("GET", f"{url}/answer") as answer:
            assert answer.read() == "Hello world"
        with pytest.raises(FailedStream), client.stream_sync("GET", f"{url}/broken") as answer:
            answer.read()
        closed = 'streamguard_streams_closed_total{cause="%s",part="direct",status="%s"} 1.0'
        wanted = [closed % ("", "complete"), closed % ("source_error", "failed")]
        wait_until(lambda: all(line in httpx.get(f"{url}/metrics").text for line in wanted))
    assert "(direct) ended as failed: cause=source_error" in (tmp_path / "stderr").read_text(encoding="utf-8")


def test_the_live_page_shows_a_stream_to_who_has_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMGUARD_PASSWORD", "correct horse battery")
    with served(tmp_path, "live_app.py") as url:
        assert "Hello world" in httpx.get(f"{url}/answer").text
        page = f"{url}/streams/dashboard"
        assert [httpx.get(page, auth=("me", word)).status_code for word in ("x", "correct horse battery")] == [401, 200]
        with httpx.stream("GET", f"{page}/feed", auth=("me", "correct horse battery")) as feed:
            picture = next(line for line in feed.iter_lines() if '"picture"' in line)
    assert '"closed":{"complete":1}' in picture


def test_a_record_is_a_line_of_json(tmp_path: Path) -> None:
    with served(tmp_path, "recorded_app.py") as url:
        with pytest.raises(FailedStream), client.stream_sync("GET", f"{url}/broken") as answer:
            answer.read()
    log = (tmp_path / "stderr").read_text(encoding="utf-8")
    (record,) = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert (record["status"], record["cause"], record["items"]) == ("failed", "source_error", 1)
    assert record["system"]["open"]["direct"] == 0


def test_what_is_traced_is_of_the_readers_trace_and_names_the_slowest_leg(tmp_path: Path) -> None:
    with served(tmp_path, "spans_app.py") as url:
        text, trace_id = ran(tmp_path, "spans_reader.py", **{"http://127.0.0.1:8000": url}).splitlines()
    assert text == "Say hello to the world "
    log = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert re.search(rf"^SPAN {trace_id} prompt {{}}$", log, re.MULTILINE)
    (span,) = re.findall(rf"^SPAN {trace_id} streamguard direct (.*)$", log, re.MULTILINE)
    assert "'streamguard.status': 'complete'" in span
    assert "'streamguard.slowest_leg': '" in span
    with served(tmp_path, "legs_app.py") as url:
        assert httpx.get(f"{url}/answer").status_code == 200
        assert httpx.get(f"{url}/slowest").json().startswith("generated: ")


def test_an_observer_of_ones_own_is_told(tmp_path: Path) -> None:
    with served(tmp_path, "counting_app.py") as url, client.stream_sync("GET", f"{url}/answer") as answer:
        assert answer.read() == "Hello world"
    log = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert re.search(r"^INFO:streams:[\w-]{8}: the first frame came after 0\.\d s$", log, re.MULTILINE)
    assert re.search(r"^INFO:streams:[\w-]{8}: complete, 2 items$", log, re.MULTILINE)
