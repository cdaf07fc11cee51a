"""What the SDKs of JavaScript hand out: of a dialect the same as of the bytes that a real server sent.

The AI SDK reads the recording by its own provider, and what our dialect `ui` makes of its text and blocks: both are to
be one message. AG-UI reads no provider: its messages are compared with what our client makes of the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamguard.core.dialect import AgUi, Anthropic, Dialect, OpenAI, OpenAIResponses, Ui
from streamguard.core.errors import Failure
from streamguard.core.items import Block, Item, tool_call
from streamguard.core.wire import Sse
from tests.adapters.logged_apps import wait_until
from tests.clients.lines import Script, script
from tests.clients.recordings import CHAT, MESSAGES, RESPONSES, content, events, recorded, served, through
from tests.core.wire.streams import FAILURE
from tests.test_docs import served as app_of_docs

# What is one answer: the others have no room for two.
TOLD = [name for name in CHAT if "n2" not in name]


@pytest.fixture(scope="module")
def sdk() -> Iterator[Script]:
    with script("sdk.cjs") as process:
        yield process


def asking(sdk: Script, verb: str, *more: Any) -> Callable[[str], Any]:
    """What one of the SDKs hands out at an address."""
    return lambda url: sdk.ask({"do": verb, "with": [url, *more]})


@pytest.mark.parametrize(
    ("verb", "dialect", "names"),
    [("chat", OpenAI(), CHAT), ("responses", OpenAIResponses(), RESPONSES), ("message", Anthropic(), MESSAGES)],
    ids=["openai chat", "openai responses", "anthropic"],
)
def test_what_a_provider_sent_is_handed_out_as_from_the_recording(
    sdk: Script, verb: str, dialect: Dialect, names: list[str]
) -> None:
    ask = asking(sdk, verb)
    for name in names:
        wanted = served(recorded(name), ask)
        assert wanted
        for wire in (Sse(), Sse(ids="id")):
            assert served(through(events(name), dialect, wire), ask) == wanted, name


def unnamed(message: Any) -> list[Any]:
    """The parts of a message without what only names them."""
    return [{key: value for key, value in part.items() if key != "id"} for part in message["parts"]]


@pytest.mark.parametrize("name", TOLD)
def test_a_ui_message_is_the_one_that_the_sdk_makes_of_the_recording(sdk: Script, name: str) -> None:
    items, answer = content(name)
    tools = sorted({block.fields["name"] for block in answer.blocks if block.type == "tool_call"})
    wanted = served(recorded(name), asking(sdk, "provider", tools))
    for wire in (Sse(), Sse(ids="id")):
        found = served(through(items, Ui(), wire), asking(sdk, "ui"))
        assert unnamed(found["message"]) == unnamed(wanted)
        assert (found["status"], found["errors"]) == ("ready", [])


@pytest.mark.parametrize("name", TOLD)
def test_an_agent_says_what_is_in_the_recording(sdk: Script, name: str) -> None:
    items, answer = content(name)
    found = served(through(items, AgUi(), Sse()), asking(sdk, "agent"))
    messages = found["messages"]
    spoken = "".join([message.get("content", "") for message in messages if message["role"] == "assistant"])
    thought = [message["content"] for message in messages if message["role"] == "reasoning"]
    calls = [call for message in messages for call in message.get("toolCalls", [])]
    assert (spoken, found["failed"]) == (answer.text, None)
    assert thought == [block.fields["text"] for block in answer.blocks if block.type == "reasoning"]
    assert [tool_call(call["id"], **call["function"]) for call in calls] == [
        block for block in answer.blocks if block.type == "tool_call"
    ]


@pytest.mark.parametrize("items", [[], ["a"], ["a", tool_call("c", "f", "{}")]], ids=["none", "text", "call"])
@pytest.mark.parametrize(
    ("verb", "dialect"),
    [("chat", OpenAI()), ("responses", OpenAIResponses()), ("message", Anthropic())],
    ids=["openai chat", "openai responses", "anthropic"],
)
def test_a_failure_raises_by_itself(sdk: Script, verb: str, dialect: Dialect, items: list[Item]) -> None:
    with pytest.raises(RuntimeError, match="RuntimeError"):
        served(through(items, dialect, Sse(), fail=FAILURE), asking(sdk, verb))


def test_an_agent_is_told_of_a_failure_and_raises_where_the_connection_is_cut(sdk: Script) -> None:
    body = through(["a"], AgUi(), Sse(), fail=FAILURE)
    assert served(body, asking(sdk, "agent"))["failed"] == "RuntimeError"
    with pytest.raises(RuntimeError):
        served(body, asking(sdk, "agent"), missing=1)


# ---- the AI SDK's chat ----------------------------------------------------------------------------------


def test_a_chat_is_told_of_a_failure(sdk: Script) -> None:
    found = served(through(["a"], Ui(), Sse(), fail=FAILURE), asking(sdk, "ui"))
    assert (found["status"], found["errors"]) == ("error", ["RuntimeError"])
    assert found["finish"]["isError"]


CANCELLED = Failure("cancelled", "the stream was cancelled")


@pytest.mark.parametrize("items", [[], ["a"], [Block("reasoning", {"text": "so"}), "a"]])
def test_a_cancel_is_an_abort_part_and_no_error(sdk: Script, items: list[Item]) -> None:
    body = through(items, Ui(), Sse(), fail=CANCELLED, status="cancelled")
    assert served(body, asking(sdk, "chunks"))[-1] == {"type": "abort"}
    found = served(body, asking(sdk, "ui"))
    assert (found["status"], found["errors"], found["finish"]["isError"]) == ("ready", [], False)
    texts = [part["state"] for part in found["message"]["parts"] if part["type"] == "text"]
    assert texts == ["streaming"] * items.count("a")  # it is not said to be whole


def test_a_chat_that_the_server_ends_for_want_of_room_has_an_error(sdk: Script) -> None:
    body = through(["a"], Ui(), Sse(), fail=Failure("evicted", "no room"), status="cancelled")
    found = served(body, asking(sdk, "ui"), missing=1)
    assert found["status"] == "error"
    assert len(found["errors"]) == 1


def test_a_chat_that_was_loaded_again_goes_on_and_can_be_cancelled(sdk: Script, tmp_path: Path) -> None:
    """The application of docs/how-to/serve-the-ai-sdk.md, as its page asks it."""
    paced = {
        "range(100)": "range(20)",
        "await anyio.sleep(0.05)\n": "while number >= allowed[0]:\n                await anyio.sleep(0.005)\n",
        "guard.install(": "allowed = [3]\napp.get('/allow/{n}')(lambda n: allowed.insert(0, int(n)))\nguard.install(",
    }
    cookie = {"cookie": "session=ann"}
    text = "".join([f"word-{number} " for number in range(20)])
    with app_of_docs(tmp_path, "ai_sdk_app.py", **paced) as url, ThreadPoolExecutor(1) as pool:

        def begun(chat: str) -> None:
            body = {"id": chat, "messages": []}
            with httpx.stream("POST", f"{url}/api/chat", json=body, headers=cookie) as response:
                for line in response.iter_lines():
                    if "word-2 " in line:
                        return  # the page is loaded again

        def resume(chat: str) -> Any:
            return sdk.ask({"do": "resume", "with": [f"{url}/api/chat", chat, cookie]})

        def read_by(count: int, chat: str) -> bool:
            status = httpx.get(f"{url}/streams/status", params={"name": chat}, headers=cookie).json()
            return int(status["readers_here"]) == count

        begun("c1")
        read = pool.submit(resume, "c1")
        wait_until(lambda: read_by(1, "c1"))
        httpx.get(f"{url}/allow/20")
        found = read.result()
        assert [part["text"] for part in found["message"]["parts"] if part["type"] == "text"] == [text]
        assert (found["status"], found["errors"]) == ("ready", [])
        again = resume("c1")
        assert (again["message"], again["status"], again["errors"]) == (None, "ready", [])  # 204

        httpx.get(f"{url}/allow/3")
        begun("c2")
        read = pool.submit(resume, "c2")
        wait_until(lambda: read_by(1, "c2"))
        assert httpx.delete(f"{url}/streams", params={"name": "c2"}, headers=cookie).status_code == 204
        found = read.result()
        assert (found["status"], found["errors"]) == ("ready", [])
