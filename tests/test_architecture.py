"""The structure that the design promises, read from the source: layers, sizes, cycles, the core without a loop."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.modules import MODULES, PACKAGE, ROOT, Module

ANY = ""  # every module of the package begins with it

_REDIS = ("redis", *(f"redis_{part}" for part in ["index", "calls", "scripts", "frames", "lanes", "hub", "link"]))
_SQLITE = ("threads", "readers", "waits", "recent", "book", "kept", "reading", "blocks", "file", "clock")

# What a module may import from the package, by the longest prefix of its name that stands here.
LAYERS = {
    "core": ("core",),
    "log.base": ("core",),
    "log": ("core", "log.base", "log.kept", "log.waits"),
    **dict.fromkeys(
        ["log.sqlite", *(f"log.sqlite_{part}" for part in _SQLITE)],
        ("core", "log", "runtime.wakeup"),  # it is called from threads of its own
    ),
    **dict.fromkeys([f"log.{part}" for part in _REDIS], ("core", "log")),
    "observe.stream": ("core",),
    "observe.hooks": ("core", "observe.stream"),
    "observe": ("core", "extras", "observe"),
    "runtime": ("core", "log.base", "observe.hooks", "observe.stream", "runtime"),
    "app": ("core", "log.base", "observe.hooks", "runtime"),
    "upstream": (
        *("core", "extras", "client.body", "client.traceparent"),
        *("runtime.closing", "runtime.source", "runtime.takeover", "upstream"),
    ),
    "client": ("core", "extras", "client"),
    "browser": (),  # JavaScript
    "check": ("core", "client.body", "client.head", "options", "check"),
    "options": (),
    "extras": (),
    "adapters": ("core", "extras", "log.base", "observe.hooks", "runtime", "app", "upstream", "browser", "adapters"),
    "adapters.dashboard": ("core", "observe.hooks", "observe.live", "runtime", "app", "browser", "adapters"),
    "proxy": ("core", "log", "observe", "runtime", "app", "adapters", "client.body", "options", "proxy"),
    "testing": (ANY,),
    "demo": (ANY,),
    "cli": (ANY,),
    "": ("core", "log.base", "observe.hooks", "runtime", "app"),  # the package's own face
}

# The core's own layers, lowest first: a module imports from its own and from lower ones.
CORE_LAYERS = (
    (
        *("arguments", "codes", "errors", "items", "cursor", "states", "jsontext", "frame", "receipt", "negotiate"),
        "compress",
    ),
    ("wire", "dialect"),
    ("flush", "adaptive", "flush_stage", "item_stage", "framing", "guard"),
    ("exchange", "check", "terminal", "rejoin", "credit", "window", "unstreamed"),
    ("pipeline", "verify"),
)

# What may be imported from outside the standard library, by the same prefixes.
BASE = {"attrs", "attr", "typing_extensions"}
OUTSIDE = {"core": BASE, "log.base": BASE, "observe.hooks": BASE, "observe.stream": BASE, "": BASE | {"anyio"}}

# Every other library has one home; nothing but a package's own face, or the one named here, imports that home.
HOMES = {
    "aiohttp": "adapters.aiohttp",
    "starlette": "adapters.starlette",
    "fastapi": "adapters.fastapi",
    "flask": "adapters.flask",
    "django": "adapters.django",
    "asgiref": "adapters.django",
    "httpx": "client.httpx",
    "redis": "log.redis_link",
    "prometheus_client": "observe.prometheus",
    "opentelemetry": "observe.opentelemetry",
    "rich": "check.report",
    "httpcore": "proxy.pool",
    "uvicorn": "proxy.server",
}
MAY_IMPORT_HOME = {
    ("adapters.fastapi", "adapters.starlette"),  # FastAPI is Starlette
    ("adapters.starlette_responses", "adapters.starlette"),  # the other half of one home
    ("adapters.django_responses", "adapters.django"),  # likewise
    ("adapters.starlette_websocket", "adapters.starlette"),  # likewise
    ("adapters.aiohttp_bridge", "adapters.aiohttp"),
    ("adapters.aiohttp_websocket", "adapters.aiohttp"),
    ("client.exchange", "client.httpx"),
    ("client.known", "client.httpx"),  # likewise
    ("upstream.server", "client.httpx"),  # the same library, to ask others with
    ("client.traceparent", "observe.opentelemetry"),  # only where the program has imported it
    ("proxy.network", "proxy.pool"),
    ("proxy.app", "proxy.pool"),
    ("proxy.run", "proxy.server"),
    ("proxy.run", "observe.prometheus"),  # each only where it is asked for
    ("proxy.run", "observe.opentelemetry"),
    ("proxy.telemetry", "observe.opentelemetry"),  # the SDK, to set up
    ("check.transport", "client.httpx"),  # and to ask as an ordinary client does
    *((f"log.{name}", "log.redis_link") for name in _REDIS),
}
LAB = ("testing", "demo", "cli")  # the demo runs servers and clients of every kind

FRAMEWORKS = {
    "aiohttp", "django", "fastapi", "flask", "httpx", "matplotlib", "openai", "opentelemetry", "prometheus_client",
    "pydantic", "redis", "rich", "sqlite3", "sse_starlette", "starlette", "trio", "uvicorn", "uvloop", "websockets",
}  # fmt: skip


def inner(name: str) -> str:
    """A module's name without the package's."""
    return name.partition(".")[2]


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(prefix == ANY or name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def longest(name: str, table: dict[str, object]) -> str:
    return max((prefix for prefix in table if prefix and under(name, (prefix,))), key=len, default="")


def each(modules: dict[str, Module] = MODULES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("module", [pytest.param(modules[name], id=name) for name in sorted(modules)])


CORE = {name: module for name, module in MODULES.items() if under(inner(name), ("core",))}


@each()
def test_a_module_imports_only_from_its_layer_and_those_below(module: Module) -> None:
    name = inner(module.name)
    layer = longest(name, dict(LAYERS))
    assert layer or not name, f"{module.name} stands in no layer: give it one in LAYERS"
    for found in module.imports():
        if found.name.partition(".")[0] == "streamguard" and found.name != "streamguard":
            assert under(inner(found.name), LAYERS[layer]), f"{module.name} imports {found.name}"


@each(CORE)
def test_a_core_module_imports_no_later_stage(module: Module) -> None:
    def level(name: str) -> int | None:
        stage = inner(inner(name))
        levels = [index for index, stages in enumerate(CORE_LAYERS) if under(stage, stages)]
        assert levels or not stage, f"{name} stands in no layer of the core: give it one in CORE_LAYERS"
        return levels[0] if levels else None

    own = level(module.name)
    if own is None:
        return
    for found in module.imports():
        if found.name in CORE and not found.typing_only:
            assert (level(found.name) or 0) <= own, f"{module.name} imports {found.name}"


@each()
def test_a_library_is_imported_only_where_it_is_at_home(module: Module) -> None:
    name = inner(module.name)
    if under(name, LAB):
        return
    allowed = OUTSIDE[longest(name, dict(OUTSIDE))]
    for found in module.imports():
        library = found.name.partition(".")[0]
        if library in sys.stdlib_module_names or library in allowed or library == "streamguard":
            continue
        home = HOMES.get(library, "no module yet: name its home in HOMES")
        at_home = name == home or (name, home) in MAY_IMPORT_HOME
        assert at_home, f"{module.name} imports {library}, which is at home in {home}"


@each()
def test_nothing_imports_a_module_that_binds_to_a_library(module: Module) -> None:
    name = inner(module.name)
    homes = {f"streamguard.{home}" for home in HOMES.values()}
    for found in module.imports():
        face = found.name.rpartition(".")[0] == module.name
        if found.name in homes and not face and not under(name, LAB):
            assert (name, inner(found.name)) in MAY_IMPORT_HOME, f"{module.name} imports {found.name}"


@each()
def test_only_the_command_line_imports_the_lab_and_only_when_it_needs_it(module: Module) -> None:
    lab = ("testing", "demo")
    if under(inner(module.name), lab):
        return
    for found in module.imports():
        if under(inner(found.name), lab) and found.name.startswith("streamguard."):
            assert under(inner(module.name), ("cli",)), f"{module.name} imports {found.name}"
            assert found.lazy, f"{module.name} imports {found.name} before it is asked for"


@each(CORE)
def test_the_core_knows_no_loop_no_thread_and_no_socket(module: Module) -> None:
    asynchronous = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    found = [node.lineno for node in ast.walk(module.tree) if isinstance(node, asynchronous)]
    assert not found, f"{module.name} is asynchronous at lines {found}"
    imported = {found.name.partition(".")[0] for found in module.imports()}
    assert not imported & {"asyncio", "concurrent", "multiprocessing", "selectors", "socket", "ssl", "threading"}


@each()
def test_modules_and_functions_are_of_a_readable_size(module: Module) -> None:
    assert module.lines <= 400, f"{module.name} has {module.lines} lines"
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            assert size <= 50, f"{module.name}.{node.name} has {size} lines"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        name: {
            found.name
            for found in module.imports()
            # A package's face is no dependency of its parts: it is loaded first whatever they import.
            if found.name in MODULES and not found.typing_only and not found.lazy
        }
        for name, module in MODULES.items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@each()
def test_a_module_says_what_it_is_for_and_what_it_offers(module: Module) -> None:
    assert ast.get_docstring(module.tree), f"{module.name} has no docstring"
    only_docstring = len(module.tree.body) == 1
    is_script = module.path.name == "__main__.py"
    assert only_docstring or is_script or module.exported() is not None, f"{module.name} has no __all__"


def test_no_module_is_private() -> None:
    names = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    private = [str(name) for name in names for part in name.parts if part.startswith("_") and not part.startswith("__")]
    assert not private


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after `statement`."""
    code = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_the_package_loads_no_framework() -> None:
    assert not loaded_by("import streamguard") & FRAMEWORKS


FORBIDDEN = {
    "unfinished work": ("TO" + "DO", "FIX" + "ME", "XX" + "X"),
    "a path of one machine": ("/wo" + "rk/", "/tm" + "p/", "/ro" + "ot/", "/ho" + "me/"),
}


def test_no_text_holds_what_belongs_to_one_machine_or_is_unfinished() -> None:
    for folder in ("streamguard", "docs", "examples", "tests", "README.md", "pyproject.toml"):
        top = ROOT / folder
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.suffix not in {".py", ".md", ".toml"} or "__pycache__" in path.parts:
                continue
            text = path.read_text(encoding="utf-8").replace("XX" + "XX", "")  # how mutmut writes an empty string
            for kind, words in FORBIDDEN.items():
                found = [word for word in words if word in text]
                assert not found, f"{path.relative_to(ROOT)} holds {kind}: {found}"


def test_every_install_line_names_the_distribution() -> None:
    wrong = "pip install streamguard"
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(PACKAGE.rglob("*.py"))]:
        if not path.exists():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            rest = line.partition(wrong)[2] if wrong in line else "-io"
            assert rest.startswith("-io"), f"{path.relative_to(ROOT)}:{number}: the distribution is streamguard-io"
