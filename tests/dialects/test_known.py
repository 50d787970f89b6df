"""The declared dialects: imported when they are used, found by their paths, and brought by other packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.dialects.known import DECLARED, DIALECTS, find_dialect
from tests.fixtures.gateways import EXACT_CACHE
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.upstream import Upstream

LAZY = ("kserve", "tfserving", "torchserve")
PATHS = {
    "kserve": "/v2/models/m/infer",
    "tfserving": "/v1/models/m:predict",
    "torchserve": "/predictions/m",
    "mcp": "/mcp",
}

# A protocol whose questions differ in more than their letters, for endpoints of OpenAI-compatible servers.
SHOUT = """
import re
import orjson
from gateway.dialects.unstreamed import Unstreamed
from gateway.errors import BadRequest
from gateway.messages import Bypass, Call, Decisive, Outgoing


class Shout(Unstreamed):
    name = "shout"
    accepted_by = frozenset({"openai"})
    path = re.compile("/v1/shout")

    def parse(self, path, body, headers):
        if not body.isascii():
            raise BadRequest("the shout is not ASCII")
        decisive = body.upper()
        return Call(
            dialect=self, operation="shout", body={"shout": body}, model="", stream=False,
            decisive_source=Decisive(decisive, decisive, None, Bypass.NO_TEXT),
            prompt_source=body.decode(), max_tokens=None, user=None,
        )

    def outgoing(self, path, call, *, model, kept):
        return Outgoing(path, call.body["shout"])

    def error(self, kind, message, param=None):
        return orjson.dumps({"shout": message.upper()})
"""


def imported(program: str) -> set[str]:
    """Return the modules of the gateway that a program has imported."""
    code = f"import sys\n{program}\nprint(*(name for name in sys.modules if name.startswith('gateway')))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.fixture
def shout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with a dialect, for processes."""
    site = tmp_path / "site"
    about = site / "shout-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "shout.py").write_text(SHOUT)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shout\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nearhit.dialects]\nshout = shout:Shout\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *sys.path]))


@pytest.mark.parametrize("name", LAZY)
def test_a_dialect_that_no_backend_speaks_is_imported_by_the_first_request_on_its_path(name: str) -> None:
    start = "from gateway.dialects.known import DIALECTS, find_dialect\nDIALECTS.prepare(['openai'])\n"
    asked = f"assert find_dialect('GET', {PATHS[name]!r}) is None\nassert DIALECTS.claimant('POST', {PATHS[name]!r})\n"
    module = f"gateway.features.{name}.dialect"
    assert module not in imported(start + asked)
    assert module in imported(start + f"assert find_dialect('POST', {PATHS[name]!r}).name == {name!r}\n")


@pytest.mark.parametrize(
    ("adapter", "name"), [*((name, name) for name in LAZY), ("triton", "kserve"), ("onnx", "kserve")]
)
def test_a_dialect_that_a_backend_answers_is_imported_at_the_start(adapter: str, name: str) -> None:
    modules = imported(f"from gateway.dialects.known import DIALECTS\nDIALECTS.prepare([{adapter!r}])\n")
    assert {other for other in LAZY if f"gateway.features.{other}.dialect" in modules} == {name}


def test_each_dialect_has_the_name_and_the_paths_that_are_declared() -> None:
    assert {name: dialect.name for name, dialect in DIALECTS.items()} == {name: name for name in DECLARED}
    for name, path in PATHS.items():
        assert find_dialect("POST", path) is DIALECTS[name]
        assert DIALECTS[name].claims("POST", path)


async def test_a_dialect_of_another_package_is_served_cached_and_passed_to_a_backend(
    shout: None, upstream: Upstream, tmp_path: Path
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=b"HO: " + await request.read())

    upstream.answer = answer
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, EXACT_CACHE)
    async with served_by_process(config) as served:
        first, again = [await served.post("/v1/shout", data) for data in (b"hello", b"HELLO")]
        refused = await served.post("/v1/shout", "hé".encode())
    assert (first.status, first.body) == (200, b"HO: hello")
    assert (again.status, again.body) == (200, b"HO: hello")
    assert "detail=exact" in again.headers["Cache-Status"]
    assert [(call.path, call.body) for call in upstream.calls] == [("/v1/shout", b"hello")]
    assert (refused.status, refused.body) == (400, b'{"shout":"THE SHOUT IS NOT ASCII"}')
