"""The declared dialects: imported when they are used, found by their paths, and brought by other packages."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.dialects.known import DECLARED, DIALECTS, find_dialect
from tests.fixtures.gateways import EXACT_CACHE
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.upstream import Upstream

LAZY = ("openai-responses", "anthropic", "kserve", "tfserving", "torchserve", "gemini")
PATHS = {
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "kserve": "/v2/models/m/infer",
    "tfserving": "/v1/models/m:predict",
    "torchserve": "/predictions/m",
    "mcp": "/mcp",
    "azure": "/openai/deployments/m/chat/completions",
    "gemini": "/v1beta/models/m:generateContent",
}

EXAMPLE = Path(__file__).parents[2] / "examples" / "dialect"


def imported(program: str) -> set[str]:
    """Return the modules of the gateway that a program has imported."""
    code = f"import sys\n{program}\nprint(*(name for name in sys.modules if name.startswith('gateway')))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.fixture
def shout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a package with a dialect is installed for processes."""
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    about = tmp_path / "site" / "nearhit_shout-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nearhit-shout\nVersion: 1.0\n")
    lines = [f"[{group}]\n{name} = {place}" for group, named in points.items() for name, place in named.items()]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(about.parent), str(EXAMPLE), *sys.path]))


@pytest.mark.parametrize("name", LAZY)
def test_a_dialect_that_no_backend_speaks_is_imported_by_the_first_request_on_its_path(name: str) -> None:
    start = "from gateway.dialects.known import DIALECTS, find_dialect\nDIALECTS.prepare(['openai'])\n"
    asked = f"assert find_dialect('GET', {PATHS[name]!r}) is None\nassert DIALECTS.claimant('POST', {PATHS[name]!r})\n"
    module = DECLARED[name].place.partition(":")[0]
    assert module not in imported(start + asked)
    assert module in imported(start + f"assert find_dialect('POST', {PATHS[name]!r}).name == {name!r}\n")


@pytest.mark.parametrize(
    ("adapter", "name"), [*((name, name) for name in LAZY), ("triton", "kserve"), ("onnx", "kserve")]
)
def test_a_dialect_that_a_backend_answers_is_imported_at_the_start(adapter: str, name: str) -> None:
    modules = imported(f"from gateway.dialects.known import DIALECTS\nDIALECTS.prepare([{adapter!r}])\n")
    assert {other for other in LAZY if DECLARED[other].place.partition(":")[0] in modules} == {name}


def test_each_dialect_has_the_name_and_the_paths_that_are_declared() -> None:
    assert {name: dialect.name for name, dialect in DIALECTS.items()} == {name: name for name in DECLARED}
    for name, declared in DECLARED.items():
        if declared.path is not None:
            traits = DIALECTS[name].client_header, DIALECTS[name].token_count_path
            assert traits == (declared.client_header, declared.token_count_path)
    for name, path in PATHS.items():
        assert find_dialect("POST", path) is DIALECTS[name]
        assert DIALECTS[name].claims("POST", path)


async def test_requests_that_wait_for_the_import_of_their_dialect_are_all_answered(
    upstream: Upstream, tmp_path: Path
) -> None:
    """Eight requests at once are the first for their dialect, and another dialect is asked meanwhile."""
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, EXACT_CACHE)
    message = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    async with served_by_process(config) as served:
        answers = await asyncio.gather(
            *(served.post("/v1/messages", message) for _ in range(8)),
            served.post("/v1/responses", {"model": "m", "input": "hello"}),
            served.post("/v1/chat/completions", {"model": "m", "messages": message["messages"]}),
        )
        refused = await served.post("/v1/messages", {"model": "m"})
        again = await served.post("/v1/messages", message)
    assert [each.status for each in answers] == [200] * 10
    assert [json.loads(each.body)["type"] for each in answers[:8]] == ["message"] * 8
    assert (refused.status, json.loads(refused.body)["type"]) == (400, "error")
    assert "detail=exact" in again.headers["Cache-Status"]
    assert len([call for call in upstream.calls if call.path == "/v1/chat/completions"]) == 2


async def test_a_dialect_of_another_package_is_served_cached_and_passed_to_a_backend(
    shout: None, upstream: Upstream, tmp_path: Path
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=b"HO: " + await request.read())

    upstream.answer = answer
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, EXACT_CACHE)
    async with served_by_process(config) as served:
        first, again = [await served.post("/v1/shout", data) for data in (b"hello", b"HELLO")]
        refused = await served.post("/v1/shout", b"\xff")
    assert (first.status, first.body) == (200, b"HO: hello")
    assert (again.status, again.body) == (200, b"HO: hello")
    assert "detail=exact" in again.headers["Cache-Status"]
    assert [(call.path, call.body) for call in upstream.calls] == [("/v1/shout", b"hello")]
    assert (refused.status, refused.body) == (400, b'{"shout":"THE SHOUT IS NOT UTF-8"}')
