"""The hot path, read: one turn of its loop is one token, and what costs more than a token is not in it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import pytest

from streamguard.runtime.direct import DirectDriver

# Measured per token: a timeout scope 3.9 to 9.8 µs, a lock 0.5 to 2, a queue 7, a task 15; all else together 1.5.
BLOCKS = (ast.AsyncWith, ast.With, ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.Tuple, ast.JoinedStr, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)
CALLS_PER_TOKEN = {"clock", "push", "send", "deadline"}
# Behind a flag, a deadline or a slice of time.
SELDOM = {"before_parking", "_attend", "set", "due", "beside", "look", "Lost"}


def inside(tree: ast.AST) -> list[ast.AST]:
    """Everything in the one loop of `tree`, the loop itself left out."""
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.While, ast.For, ast.AsyncFor))]
    assert len(loops) == 1, "one loop, or this test reads the wrong one"
    return [node for statement in loops[0].body for node in ast.walk(statement)]


def findings(function: Any) -> list[str]:
    """What the loop of `function` has that a hot loop must not have."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = []
    for node in inside(tree):
        if isinstance(node, (*BLOCKS, *COMPREHENSIONS, *DISPLAYS)):
            found.append(type(node).__name__)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "?")
            if name not in CALLS_PER_TOKEN | SELDOM:
                found.append(name)
    return found


def test_the_hot_loop_has_no_scope_lock_queue_task_or_container() -> None:
    assert findings(DirectDriver._loop) == []


def test_the_hot_loop_awaits_the_source_and_the_sink_and_else_only_what_is_seldom() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(DirectDriver._loop)))
    awaited = [ast.unparse(node.value) for node in inside(tree) if isinstance(node, ast.Await)]
    assert sorted(awaited) == ["self._attend(item, out, now)", "send(out)", "watch.beside(turns, late, now)"]
    assert any(ast.unparse(node.iter) == "turns.source" for node in ast.walk(tree) if isinstance(node, ast.AsyncFor))


async def _with_a_scope(self: Any, step: Any) -> None:
    while True:
        with self.scope():
            await step()


async def _with_a_task(self: Any, step: Any) -> None:
    while True:
        await self.tasks.create_task(step())


async def _with_a_list(self: Any, step: Any) -> None:
    while True:
        await self.send([await step()])


async def _with_a_time_limit(self: Any, step: Any) -> None:
    while True:
        await self.wait_for(step(), 1.0)


@pytest.mark.parametrize("slow", [_with_a_scope, _with_a_task, _with_a_list, _with_a_time_limit])
def test_the_reading_finds_what_it_looks_for(slow: Any) -> None:
    assert findings(slow) != []
