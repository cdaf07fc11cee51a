"""Every file of `examples/` runs: applications are served by uvicorn and asked, scripts run as a user runs them."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import random
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import anyio
import httpx
import pytest

from streamguard.client import stream_sync
from streamguard.core.cursor import cursor_zero
from streamguard.core.errors import FailedStream
from streamguard.core.items import Checkpoint, Finish
from streamguard.core.receipt import Verdict
from streamguard.log.memory import MemoryLog
from streamguard.testing import HEAD, FaultProxy, Plan
from tests.adapters.aiohttp_serving import serving_aiohttp
from tests.adapters.servers import Server, serving
from tests.adapters.wsgi_servers import serving_wsgi
from tests.asking import http
from tests.modules import ROOT
from tests.runtime.fakes import SID
from tests.runtime.orphans import died
from tests.upstream.player import CHAT, Player
from tests.upstream.test_langchain import Chunk, Stream, ended
from tests.upstream.test_transformers import PROMPT, Ids, Model, Streamer
from tests.upstream.test_vllm import Engine as VllmEngine
from tests.upstream.test_vllm import OutputKind, delta

EXAMPLES = ROOT / "examples"
APPS = {
    "fastapi_app.py", "starlette_app.py", "asgi_app.py", "resumable_app.py", "takeover.py",
    "litestar_app.py", "upstream_app.py", "upstream_local.py",
}  # fmt: skip
AIOHTTP = {"aiohttp_app.py"}
WSGI = {"flask_app.py"}
PROCESSES = {"django_app.py"}  # which are one of a process
SOCKETS = {"websocket_app.py", "websocket_aiohttp.py", "websocket_reader.py"}
CLIENTS = {"client_async.py", "client_sync.py"}
MODELS = {"takeover_hf.py"}
SCRIPTS = {"stages.py"}
TESTS = {"test_my_endpoint.py"}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{Path(name).stem}", EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where annotations that are strings are looked up
    spec.loader.exec_module(module)
    return module


@contextmanager
def served(name: str) -> Iterator[Server]:
    with serving(loaded(name).app) as server:
        yield server


def read(method: str, url: str, **options: Any) -> tuple[Verdict, str]:
    with stream_sync(method, url, **options) as answer:
        text = answer.read()
        return answer.receipt.verdict, text


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


def test_every_example_is_run() -> None:
    run_here = APPS | AIOHTTP | WSGI | PROCESSES | SOCKETS | CLIENTS | MODELS | SCRIPTS | TESTS
    assert {path.name for path in EXAMPLES.glob("*.py")} == run_here


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_scripts_run(name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", sorted(TESTS))
def test_tests_pass(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=EXAMPLES, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_clients_tell_a_whole_answer_from_a_failed_one(name: str) -> None:
    with served("fastapi_app.py") as server:
        whole = run(name, f"{server.url}/chat", "Tell", "me")
        failed = run(name, f"{server.url}/chat", "Tell", "break", "me")
        missing = run(name, f"{server.url}/nothing")
    assert whole.returncode == 0, whole.stderr
    assert "Tell" in whole.stdout
    assert "COMPLETE" in whole.stdout
    assert failed.returncode == missing.returncode == 1
    assert "model_broke" in failed.stderr
    assert "404" in missing.stderr


class TestFastAPI:
    def test_chat(self) -> None:
        with served("fastapi_app.py") as server:
            ann = {"x-user": "ann"}
            answer = read("POST", f"{server.url}/chat", json={"text": "Tell me"}, headers=ann)
            assert answer == (Verdict.COMPLETE, "ann: Tell me ")
            refused = http.post(f"{server.url}/chat", json={"text": "x"}, headers={"x-user": "nobody"})
            assert refused.status_code == 403
            with pytest.raises(FailedStream, match="model_broke"):
                read("POST", f"{server.url}/chat", json={"text": "Tell break me"})

    def test_completions(self) -> None:
        import openai

        with served("fastapi_app.py") as server:
            client = openai.OpenAI(api_key="k", base_url=f"{server.url}/v1", max_retries=0)
            ask = client.chat.completions.create
            chunks = list(ask(model="m", messages=[{"role": "user", "content": "Tell me"}], stream=True))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Tell me "
            assert {chunk.model for chunk in chunks} == {"m"}
            with pytest.raises(openai.APIError, match="the model broke"):
                list(ask(model="m", messages=[{"role": "user", "content": "Tell break"}], stream=True))
            client.close()

    def test_early(self) -> None:
        with served("fastapi_app.py") as server:
            assert http.post(f"{server.url}/early", json={"text": " "}).status_code == 422
            assert read("POST", f"{server.url}/early", json={"text": "hi"}) == (Verdict.COMPLETE, "hi ")


class TestAiohttp:
    def test_chat(self) -> None:
        with serving_aiohttp(loaded("aiohttp_app.py").app) as server:
            answer = read("POST", f"{server.url}/chat", json={"text": "Tell me"})
            assert answer == (Verdict.COMPLETE, "Tell me ")
            with pytest.raises(FailedStream, match="model_broke"):
                read("POST", f"{server.url}/chat", json={"text": "Tell break me"})
            assert http.get(f"{server.url}/ready").status_code == 200

    def test_a_reloaded_page_has_the_answer_of_its_chat(self) -> None:
        with serving_aiohttp(loaded("aiohttp_app.py").app) as server:
            read("POST", f"{server.url}/chats/seven", json={"text": "Tell me"})
            assert read("GET", f"{server.url}/streams?name=ann:seven") == (Verdict.COMPLETE, "Tell me ")


class TestFlask:
    def test_chat(self) -> None:
        with serving_wsgi("werkzeug", loaded("flask_app.py").app) as url:
            assert read("POST", f"{url}/chat", json={"text": "Tell me"}) == (Verdict.COMPLETE, "Tell me ")
            with pytest.raises(FailedStream, match="model_broke"):
                read("POST", f"{url}/chat", json={"text": "Tell break me"})
            read("POST", f"{url}/chats/seven", json={"text": "Tell me"})
            assert read("GET", f"{url}/streams?name=ann:seven") == (Verdict.COMPLETE, "Tell me ")


class TestDjango:
    def test_chat(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "django_app:app", "--port", "0", "--no-access-log"]
        process = subprocess.Popen(command, cwd=EXAMPLES, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            url = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
            for path in ("chat", "plain"):
                assert read("POST", f"{url}/{path}", json={"text": "Tell me"}) == (Verdict.COMPLETE, "Tell me ")
            with pytest.raises(FailedStream, match="model_broke"):
                read("POST", f"{url}/chat", json={"text": "Tell break me"})
            read("POST", f"{url}/chats/seven", json={"text": "Tell me"})
            assert read("GET", f"{url}/streams?name=ann:seven") == (Verdict.COMPLETE, "Tell me ")
            for path in ("chat", "plain", "chats/seven"):
                assert http.post(f"{url}/{path}", content=b"no JSON").status_code == 500
        finally:
            process.terminate()
            log = process.communicate(timeout=60)[1]
        assert log.count("Traceback") <= 3  # Django's, of the three that are no JSON
class TestWebSocket:
    def test_whole_and_failed_answers_are_told_apart(self) -> None:
        reader = loaded("websocket_reader.py")
        with serving(loaded("websocket_app.py").app, ws="wsproto") as server:
            for path in ("chat", "chats/seven"):
                verifier = asyncio.run(reader.read(f"{server.url}/{path}", {"text": "Tell me " * 40}))
                assert (verifier.verdict, verifier.cursor.seq) == (Verdict.COMPLETE, 81)
            verifier = asyncio.run(reader.read(f"{server.url}/chat", {"text": "Tell break"}))
            assert (verifier.verdict, verifier.failure.code) == (Verdict.FAILED, "model_broke")

    def test_what_was_cut_is_read_on(self) -> None:
        reader = loaded("websocket_reader.py")

        async def cut() -> Any:
            plan = Plan(cut_at=2500, after=HEAD)
            async with FaultProxy("127.0.0.1", server.port, plan=lambda index: plan if not index else Plan()) as proxy:
                return await reader.read(f"{proxy.url}/chats/seven", {"text": "Tell me " * 20})

        with serving(loaded("websocket_app.py").app, ws="wsproto") as server:
            verifier = asyncio.run(cut())
        assert (verifier.verdict, verifier.resumes, verifier.duplicates) == (Verdict.COMPLETE, 1, 0)

    def test_on_aiohttp_and_as_a_script(self) -> None:
        with serving_aiohttp(loaded("websocket_aiohttp.py").app) as server:
            done = run("websocket_reader.py", f"{server.url}/chat", "Tell", "me")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Tell me \nCOMPLETE")


class TestStarlette:
    def test_chat(self) -> None:
        with served("starlette_app.py") as server:
            answer = read("POST", f"{server.url}/chat", json={"text": "Tell me"})
            assert answer == (Verdict.COMPLETE, "Tell me ")

    def test_a_clock_is_stopped_from_elsewhere(self) -> None:
        with served("starlette_app.py") as server:
            with pytest.raises(httpx.RemoteProtocolError), http.stream("GET", f"{server.url}/clock?id=a") as response:
                assert response.headers["x-served-by"] == "starlette_app"
                assert response.headers["x-clock"] == "a"
                body = ""
                for piece in response.iter_text():
                    body += piece
                    if "0 " in body and "stopped" not in body:
                        assert http.delete(f"{server.url}/clock?id=a").text == "stopped\n"
            assert '"code":"stopped"' in body
            assert http.delete(f"{server.url}/clock?id=b").status_code == 404


def test_asgi() -> None:
    with served("asgi_app.py") as server:
        assert read("GET", f"{server.url}/Tell/me/a%20story") == (Verdict.COMPLETE, "Tell me a story ")
        lines = [json.loads(line) for line in http.get(f"{server.url}/hi").text.splitlines()]
        assert lines[-1]["event"] == "end"


def test_litestar_serves_guarded_answers_and_resumes_them() -> None:
    ann = {"x-user": "ann", "streamguard": "v=1"}
    with served("litestar_app.py") as server:
        whole = read("POST", f"{server.url}/chat", json={"text": "Tell me a story"})
        assert whole == (Verdict.COMPLETE, "Tell me a story ")
        assert http.post(f"{server.url}/chat", json={}).status_code == 400
        lasting = http.post(f"{server.url}/lasting", json={"text": "Tell me a story"}, headers=ann)
        second = [line[4:] for line in lasting.text.splitlines() if line.startswith("id: ")][2]
        rest = http.get(f"{server.url}/streams", headers={**ann, "last-event-id": second})
        texts = [line[6:] for line in rest.text.splitlines() if line.startswith('data: "')]
        assert texts == ['"a "', '"story "']
        other = {"x-user": "bob", "last-event-id": second}
        assert http.get(f"{server.url}/streams", headers=other).status_code == 404
        assert http.post(f"{server.url}/lasting", json={"text": "Tell me"}).status_code == 403


class TestResumable:
    def test_a_reloaded_page_reads_the_newest_answer_of_its_chat_from_the_start(self) -> None:
        ann = {"x-user": "ann", "streamguard": "v=1"}
        with served("resumable_app.py") as server:
            answer = {"json": {"text": "Tell me", "pace": 0}, "headers": ann}
            assert read("POST", f"{server.url}/chats/seven", **answer) == (Verdict.COMPLETE, "Tell me ")
            assert read("GET", f"{server.url}/streams?name=seven", headers=ann) == (Verdict.COMPLETE, "Tell me ")
            assert http.get(f"{server.url}/streams?name=seven", headers={"x-user": "bob"}).status_code == 404
            assert http.get(f"{server.url}/streams?name=seven").status_code == 403

    def test_an_answer_is_stopped_by_its_chat(self) -> None:
        ann = {"x-user": "ann", "streamguard": "v=1"}
        with served("resumable_app.py") as server:
            asked = {"json": {"text": "one two", "pace": 3600}, "headers": ann}
            with stream_sync("POST", f"{server.url}/chats/seven", **asked) as answer:
                status = http.get(f"{server.url}/streams/status?name=seven", headers=ann).json()
                assert status["status"] == "streaming"
                assert http.delete(f"{server.url}/streams?name=seven", headers=ann).status_code == 204
                with pytest.raises(FailedStream) as raised:
                    answer.read()
        assert raised.value.code == "cancelled"


def test_a_story_whose_teller_dies_goes_on() -> None:
    """In one process: the stream of a dead one is what its log has. `tests/processes` kills real ones."""
    module = loaded("takeover.py")
    model = module.Model(7, length=20, pace=0.0)

    async def words(story: Any) -> list[str]:
        return [word async for word in story]

    whole = anyio.run(words, model)
    again = anyio.run(words, module.Model(7, length=20, pace=0.0))
    assert (len(whole), whole) == (20, again)
    half = module.Model(7, length=12, pace=0.0)
    anyio.run(words, half)
    assert anyio.run(words, module.Model(7, length=20, pace=0.0, state=half.state())) == whole[12:]
    with serving(module.make_app(MemoryLog())) as server:
        assert read("POST", f"{server.url}/stories/7")[0] is Verdict.COMPLETE


class Dice:
    """Random numbers of the standard library, saved as torch's are: as text."""

    def __init__(self, seed: int, state: str | None) -> None:
        self._random = random.Random(seed)
        if state is not None:
            version, numbers, gauss = json.loads(state)
            self._random.setstate((version, tuple(numbers), gauss))

    def pick(self, logits: list[float], temperature: float) -> int:
        chances = [math.exp(logit / temperature) for logit in logits]
        return self._random.choices(range(len(logits)), chances)[0]

    def state(self) -> str:
        return json.dumps(self._random.getstate())


class Standin:
    """What `HuggingFace` is to the example, without torch: tokens are bytes and what ends an answer, what comes next
    depends on all tokens so far, and half a character is a token, as in a real vocabulary."""

    end = 256

    def __init__(self) -> None:
        self.steps: list[int] = []  # how many tokens each took

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def step(self, tokens: list[int], cache: list[int] | None) -> tuple[list[float], list[int]]:
        seen = [*(cache or []), *tokens]
        self.steps.append(len(tokens))
        place = zlib.crc32(bytes(seen)) % 7
        likely = {b"\xc3"[0]} if place else {32}
        if seen[-1] == 0xC3:
            likely = {0xA9, 0xBC}
        return [9.0 if token in likely else 3.0 if 97 <= token < 123 else -9.0 for token in range(257)], seen

    def dice(self, seed: int, state: str | None) -> Dice:
        return Dice(seed, state)


class TestUpstream:
    """A guarded endpoint before a model's server, and before models in its own process."""

    def test_a_server_before_and_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import openai

        player = Player()
        with serving(player.app) as behind:
            monkeypatch.setenv("MODEL_SERVER", f"{behind.url}/v1")
            monkeypatch.setenv("MODEL_PROFILE", "vllm")
            with served("upstream_app.py") as server:
                client = openai.OpenAI(api_key="k", base_url=f"{server.url}/v1", max_retries=0)

                def ask() -> str:
                    messages: Any = [{"role": "user", "content": "Hello"}]
                    chunks = client.chat.completions.create(model="m", messages=messages, stream=True)
                    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

                player.plays(*CHAT)
                assert ask() == "Hello"
                assert player.asked[0] == "/v1/chat/completions"
                assert read("POST", f"{server.url}/chat", json={"text": "x"}) == (Verdict.COMPLETE, "Hello")
                player.plays(*CHAT[:2])  # the server ends in the middle, and cleanly
                with pytest.raises(openai.APIError, match="stopped in the middle"):
                    ask()
                with pytest.raises(FailedStream, match="upstream_truncated"):
                    read("POST", f"{server.url}/chat", json={"text": "x"})
                player.plays(*CHAT[:2], hangs=True)
                with http.stream("POST", f"{server.url}/chat", json={"text": "x"}):
                    player.reached.wait()
                player.closed.wait()
                client.close()

    @pytest.mark.parametrize("name", ["transformers", "vllm", "langchain"])
    def test_models_in_the_same_process(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MODEL", "m")
        for module, contents in models_in_process().items():
            monkeypatch.setitem(sys.modules, module, contents)
        dialect = "ui" if name == "langchain" else "native"
        with served("upstream_local.py") as server:
            answer = read("POST", f"{server.url}/{name}", json={"text": "Hello"}, dialect=dialect)
        assert answer == (Verdict.COMPLETE, "2 4 end" if name == "transformers" else "Hello")


def models_in_process() -> dict[str, Any]:
    """What the example imports of each library, as far as it uses it."""

    def loading(value: Any) -> Any:
        return SimpleNamespace(from_pretrained=lambda name: value)

    def streamer(tokenizer: Any, **options: Any) -> Streamer:
        return Streamer()

    def tokenizer(text: str, return_tensors: str) -> dict[str, Any]:
        return {"input_ids": Ids(PROMPT)}

    engine = SimpleNamespace(generate=lambda prompt, sampling, id: VllmEngine(*delta("He", "llo")).generate())
    chain = SimpleNamespace(astream=lambda text: Stream(Chunk("He"), Chunk("llo"), ended())())
    return {
        "transformers": SimpleNamespace(
            AutoTokenizer=loading(tokenizer),
            AutoModelForCausalLM=loading(Model(ends_at=5)),
            TextIteratorStreamer=streamer,
        ),
        "vllm": SimpleNamespace(SamplingParams=SimpleNamespace, AsyncEngineArgs=SimpleNamespace),
        "vllm.v1.engine.async_llm": SimpleNamespace(AsyncLLM=SimpleNamespace(from_engine_args=lambda args: engine)),
        "vllm.sampling_params": SimpleNamespace(RequestOutputKind=OutputKind),
        "langchain.chat_models": SimpleNamespace(init_chat_model=lambda name: chain),
    }


class TestHuggingFace:
    ASKED: ClassVar[dict[str, Any]] = {"prompt": "Once é", "seed": 7, "max_tokens": 90}

    def items(self, model: Standin, stood: Any = None) -> list[Any]:
        module = loaded("takeover_hf.py")
        return list(module.made(module.Generation(lambda: model, self.ASKED, stood)))

    def test_a_generation_goes_on_from_each_of_its_checkpoints_with_the_same_text(self) -> None:
        items = self.items(Standin())
        marks = [at for at, item in enumerate(items) if isinstance(item, Checkpoint)]
        text = "".join(item for item in items if isinstance(item, str))
        assert len(marks) >= 3
        assert "é" in text
        assert "\ufffd" not in text[:-1]
        assert items[-1] == Finish("length") or items[-2] == Finish("length")
        for at in marks:
            model = Standin()
            again = self.items(model, json.loads(json.dumps(items[at].state)))
            rest = [item for item in items[at:] if isinstance(item, str)]
            assert [item for item in again if isinstance(item, str)] == rest
            if rest:
                assert model.steps[0] == len(items[at].state["tokens"])  # the cache is computed anew, at once
                assert set(model.steps[1:]) <= {1}

    def test_an_answer_whose_process_died_is_the_answer_of_an_uninterrupted_run(self, tmp_path: Path) -> None:
        """The process is gone for the log's part: its lease is let go, as a process that is told to go does."""
        module = loaded("takeover_hf.py")
        items = self.items(Standin())
        whole = "".join(item for item in items if isinstance(item, str))
        marks = [at for at, item in enumerate(items) if isinstance(item, Checkpoint)]

        async def gone_on(made: list[Any]) -> tuple[str, str | None]:
            app = module.make_app(str(tmp_path / f"{len(made)}.db"), Standin)
            guard = app.state.guard
            lease = await died(guard.log, *made, resumer=next(iter(guard.resumers)))
            await guard.log.release(lease)
            await guard.lost(await guard.log.state(SID))
            frames = [frame async for page in guard.pages(cursor_zero(SID)) for frame in page]
            await guard.log.aclose()
            return "".join(json.loads(frame.data) for frame in frames[:-1]), frames[-1].status

        for cut in (marks[0] + 1, marks[1] - 1, marks[1] + 1, marks[2] + 5):
            assert anyio.run(gone_on, items[:cut]) == (whole, "complete")
        assert anyio.run(gone_on, []) == ("", "failed")  # nobody knows what was asked for

    def test_it_is_served(self, tmp_path: Path) -> None:
        module = loaded("takeover_hf.py")
        items = self.items(Standin())
        with serving(module.make_app(str(tmp_path / "streams.db"), Standin)) as server:
            answer = read("POST", f"{server.url}/stories", json=self.ASKED)
        assert answer == (Verdict.COMPLETE, "".join(item for item in items if isinstance(item, str)))
