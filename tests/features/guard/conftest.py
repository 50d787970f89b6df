"""A gateway in front of a scripted upstream, with a guard that is a real HTTP server in LiteLLM's form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, serving

PATH = "/beta/litellm_basic_guardrail_api"
ROUTES = {
    "both": "{request: URL, response: URL, timeout: 20s}",
    "open": "{request: URL/open, response: URL/open, on_error: open, timeout: 20s}",
    "requests": "{request: URL, timeout: 20s}",
    "answers": "{response: URL, timeout: 20s, version: 'VERSION'}",
    "remember": "{request: URL, timeout: 20s, remember: 1h}",
    "hasty": "{request: URL/hasty, timeout: 20ms}",
    "doomed": "{request: URL/doomed, timeout: 20s}",
    "recorded": "{request: URL, timeout: 20s}\n    record: {prompts: on}",
    "plain": "off",
}


async def verdict_of(_: web.Request, question: dict[str, Any]) -> web.StreamResponse:
    """Answer as LiteLLM's own example of a guard does: one word blocks, another one is replaced."""
    texts: list[str] = question["texts"]
    calls = str(question.get("tool_calls") or "")
    if any("forbidden" in text for text in texts) or "forbidden" in calls:
        return web.json_response({"action": "BLOCKED", "blocked_reason": "it says the word"})
    if any("secret" in text for text in texts):
        changed = [text.replace("secret", "[gone]") for text in texts]
        return web.json_response({"action": "GUARDRAIL_INTERVENED", "texts": changed})
    return web.json_response({"action": "NONE"})


@dataclass
class Guarded:
    """The gateway, the backend and the guard of a test."""

    served: Served
    upstream: Upstream
    guard: Upstream
    folder: Path

    @property
    def url(self) -> str:
        return self.guard.url.removesuffix("/v1") + PATH

    def questions(self, side: str | None = None) -> list[dict[str, Any]]:
        """Return the questions to the guard, of one side if it is given."""
        return [each.json for each in self.guard.calls if side is None or each.json["input_type"] == side]

    async def chat(self, question: str, route: str = "both", **fields: Any) -> Answer:
        return await self.served.chat(question, headers={"x-route": route}, **fields)

    async def post(self, path: str, body: Any, route: str = "both", headers: Mapping[str, str] | None = None) -> Answer:
        return await self.served.post(path, body, {"x-route": route, **(headers or {})})


def policy_at(url: str, version: str = "1") -> str:
    """Return a policy with a route for each of `ROUTES`, chosen by a header."""
    routes = [
        f"  - name: {name}\n    match: {{headers: {{x-route: {name}}}}}\n    cache: {{exact: {{ttl: 1h}}}}\n"
        f"    route: {{backend: main}}\n    guard: {guard.replace('URL', url).replace('VERSION', version)}\n"
        for name, guard in ROUTES.items()
    ]
    last = "  - name: default\n    match: {}\n    cache: {exact: {ttl: 1h}}\n    route: {backend: main}\n"
    return f"version: 1\nroutes:\n{''.join(routes)}{last}"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with serving(Upstream("main")) as upstream, serving(Upstream("guard")) as guard:
        folder = tmp_path_factory.mktemp("guard")
        config = config_of(folder, {"main": {"adapter": "openai", "url": upstream.url}})
        async with gateway_of(config, policy_at(guard.url.removesuffix("/v1") + PATH)) as served:
            yield Guarded(served, upstream, guard, folder)


@pytest.fixture
def guarded(gateway: Guarded) -> Guarded:
    """Return the gateway of the module, with the scripts of its servers as they are at first."""
    gateway.guard.answer, gateway.upstream.answer = verdict_of, None
    gateway.guard.calls.clear()
    gateway.upstream.calls.clear()
    return gateway
