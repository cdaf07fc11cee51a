"""The package's modules as the structural tests see them: parsed, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import attrs

__all__ = ["MODULES", "PACKAGE", "ROOT", "Import", "Module"]

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "streamguard"


@attrs.frozen
class Import:
    """One imported module: `typing_only` under `if TYPE_CHECKING`, `lazy` inside a function."""

    name: str
    typing_only: bool
    lazy: bool


@attrs.frozen
class Module:
    """One module of the package, by its dotted name."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    def imports(self) -> Iterator[Import]:
        """Every module that this one imports; `from package import module` gives the module."""
        yield from self._imports(self.tree.body, typing_only=False, lazy=False)

    def exported(self) -> list[str] | None:
        """The names in `__all__`, or None if there is none."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
            ):
                return list(ast.literal_eval(node.value))
        return None

    def _imports(self, body: list[ast.stmt], *, typing_only: bool, lazy: bool) -> Iterator[Import]:
        for node in body:
            if isinstance(node, ast.Import):
                yield from (Import(alias.name, typing_only, lazy) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: relative import"
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    yield Import(submodule if submodule in NAMES else node.module or "", typing_only, lazy)
            elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                yield from self._imports(node.body, typing_only=True, lazy=lazy)
            else:
                inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                for field in ("body", "orelse", "handlers", "finalbody", "cases"):
                    yield from self._imports(getattr(node, field, []), typing_only=typing_only, lazy=inside)


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _load(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(_name(path), path, ast.parse(text), text.count("\n"))


PATHS = sorted(PACKAGE.rglob("*.py"))
NAMES = {_name(path) for path in PATHS}
MODULES = {module.name: module for module in map(_load, PATHS)}
