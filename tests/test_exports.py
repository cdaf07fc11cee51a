"""Every public module: what `__all__` names is there, and nothing else is public by accident."""

from __future__ import annotations

import ast
import importlib

import pytest

from tests.modules import MODULES, Module

EXPORTING = [pytest.param(module, id=name) for name, module in sorted(MODULES.items()) if module.exported() is not None]


@pytest.mark.parametrize("module", EXPORTING)
def test_every_exported_name_exists_once(module: Module) -> None:
    exported = module.exported() or []
    assert len(set(exported)) == len(exported)
    loaded = importlib.import_module(module.name)
    missing = [name for name in exported if not hasattr(loaded, name)]
    assert not missing


@pytest.mark.parametrize("module", EXPORTING)
def test_every_public_class_and_function_is_exported(module: Module) -> None:
    defined = {
        node.name
        for node in module.tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    }
    forgotten = defined - set(module.exported() or [])
    assert not forgotten


@pytest.mark.parametrize("module", EXPORTING)
def test_what_a_module_exports_says_where_it_is_from(module: Module) -> None:
    """No rewriting of `__module__`: a traceback must name the file that holds the code."""
    loaded = importlib.import_module(module.name)
    for name in module.exported() or []:
        origin = getattr(getattr(loaded, name), "__module__", None)
        if isinstance(origin, str) and origin.startswith("streamguard"):
            assert origin in MODULES
