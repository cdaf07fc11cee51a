"""The JavaScript client as a file: its types, how it is packed, and how the endpoints serve it."""

from __future__ import annotations

import json
import re

from streamguard.browser import SCRIPT, style_of
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import Site
from tests.adapters.servers import serving
from tests.modules import ROOT
from tests.toml import load_toml

FOLDER = SCRIPT.parent
JS = SCRIPT.read_text(encoding="utf-8")
TYPES = (FOLDER / "streamguard.d.ts").read_text(encoding="utf-8")
_EXPORTED = re.compile(r"^export (?:async )?(?:class|function|const) (\w+)", re.MULTILINE)


def test_what_the_module_exports_has_a_type_and_nothing_else_has() -> None:
    exported = _EXPORTED.findall(JS)
    assert len(exported) == len(set(exported)) > 10
    assert sorted(exported) == sorted(_EXPORTED.findall(TYPES))


def test_the_module_needs_nothing_else() -> None:
    assert re.findall(r"\bimport\b(?! \{ stream \} from \"/streams)|\brequire\(", JS) == []


def test_the_package_is_that_of_the_library() -> None:
    package = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
    project = load_toml(ROOT / "pyproject.toml")["project"]
    assert (package["version"], package["license"]) == (project["version"], project["license"])
    assert not {"dependencies", "scripts"} & package.keys()
    named = [package["types"], package["exports"]["."]["default"], package["exports"]["."]["types"], *package["files"]]
    assert all((FOLDER / name).is_file() for name in named)


def test_a_page_may_differ_from_what_all_have_in_common() -> None:
    own = ROOT / "streamguard" / "observe" / "page" / "live.css"
    common, _, behind = style_of(own).partition(own.read_bytes())
    assert behind == b""
    assert b"--paper:" in common
    assert b"--paper:" not in own.read_bytes()


def test_the_endpoints_serve_the_module_to_everybody() -> None:
    site = Site("t0 ")
    with serving(site.app) as server:
        for method in ("GET", "HEAD"):
            answer = exchange(server.connect(), method, "/streams/streamguard.js", user="nobody")
            assert (answer.status, answer.header("content-type")) == (200, "text/javascript; charset=utf-8")
            assert (answer.header("cache-control"), answer.header("x-content-type-options")) == ("no-cache", "nosniff")
            assert answer.body == (SCRIPT.read_bytes() if method == "GET" else b"")
        for tags in (answer.header("etag"), f'"x", W/{answer.header("etag")}', "*"):
            again = exchange(server.connect(), path="/streams/streamguard.js", if_none_match=tags)
            assert (again.status, again.body, again.header("etag")) == (304, b"", answer.header("etag"))
        other = exchange(server.connect(), path="/streams/streamguard.js", if_none_match='"x"')
        assert other.status == 200
        put = exchange(server.connect(), "PUT", "/streams/streamguard.js")
        assert (put.status, put.header("allow")) == (405, "GET, HEAD, OPTIONS")
    assert site.asked == []


ELSEWHERE = (
    "../__init__.py", "%2e%2e/__init__.py", "..%2f__init__.py", "streamguard.js/../__init__.py", "__init__.py",
    "package.json", "streamguard.d.ts", "./streamguard.d.ts", "streamguard.js%00", "streamguard.js%2f..%2f__init__.py",
    "/etc/passwd", "..\\__init__.py", "STREAMGUARD.JS",
)  # fmt: skip


def test_no_address_reads_another_file() -> None:
    with serving(Site("t0 ").app) as server:
        found = {path: exchange(server.connect(), path=f"/streams/{path}").status for path in ELSEWHERE}
    assert found == dict.fromkeys(ELSEWHERE, 404)
