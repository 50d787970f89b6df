"""Every way into the gateway reads a request in the same way: its path, its model, its client, and so its route."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.config.policy.load import policy_from_text
from gateway.credentials import NO_CHANGES
from gateway.steps.request_reading import described_request, find_route, read_body
from gateway.subjects import SubjectDigests
from tests.features.jobs.asking import over
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.wire import connected

CHAT = "/v1/chat/completions"
ANN = NO_CHANGES.read(CIMultiDict({"Authorization": "Bearer ann"})).tenant
BOB = NO_CHANGES.read(CIMultiDict({"Authorization": "Bearer bob"})).tenant
POLICY = f"""
version: 1
routes:
  - {{name: of-ann, match: {{tenant: "{ANN}"}}, route: {{backend: main}}}}
  - {{name: pictures, match: {{model: "gpt-image*"}}, route: {{backend: main}}}}
  - {{name: dear, match: {{path: {CHAT}, model: "gpt-*"}}, route: {{backend: main}}}}
  - {{name: chats, match: {{path: {CHAT}}}, cache: {{exact: {{ttl: 1h}}}}, route: {{backend: main}}}}
  - {{name: vectors, match: {{path: /v1/embeddings}}, route: {{backend: main}}}}
  - {{name: default, match: {{}}, route: {{backend: main}}}}
"""
Row = tuple[str, dict[str, str], dict[str, Any], tuple[str, str | None, str, str | None, str]]


def chat(model: str = "m", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}


# The target, the headers and the body of a request, then: path, dialect, model, key, and route.
ROWS: list[Row] = [
    (CHAT, {}, chat(), (CHAT, "openai", "m", None, "chats")),
    ("/v1/chat/%63ompletions", {}, chat("gpt-4"), (CHAT, "openai", "gpt-4", None, "dear")),
    ("/v1/x/../chat//completions/", {}, chat("gpt-4"), (CHAT, "openai", "gpt-4", None, "dear")),
    ("/v1/%65mbeddings?a=1", {}, {"model": "e", "input": "x"}, ("/v1/embeddings", "openai", "e", None, "vectors")),
    ("/v1/ocr", {}, {"model": "gpt-image-1"}, ("/v1/ocr", None, "gpt-image-1", None, "pictures")),
    ("/v1/images/%67enerations", {}, {"x": 1}, ("/v1/images/generations", None, "", None, "default")),
    ("/v1/rerank?model=gpt-image-2", {}, {"x": 1}, ("/v1/rerank", None, "gpt-image-2", None, "pictures")),
    (CHAT, {"Authorization": "Bearer ann"}, chat("gpt-4"), (CHAT, "openai", "gpt-4", "ann", "of-ann")),
    (CHAT, {"X-Litellm-Key": "ann", "Cookie": "s=1"}, chat(), (CHAT, "openai", "m", "ann", "of-ann")),
    (CHAT + "?key=ann", {"Cookie": "AWSALB=1"}, chat(), (CHAT, "openai", "m", "ann", "of-ann")),
    (CHAT, {"apikey": "bob"}, chat(), (CHAT, "openai", "m", "bob", "chats")),
    ("/v1/images/edits", {"PRIVATE-TOKEN": "ann"}, {"model": "x"}, ("/v1/images/edits", None, "x", "ann", "of-ann")),
]  # fmt: skip


@pytest.mark.parametrize(("target", "headers", "body", "expected"), ROWS)
def test_what_a_request_is(
    tmp_path: Path,
    target: str,
    headers: dict[str, str],
    body: dict[str, Any],
    expected: tuple[str, str | None, str, str | None, str],
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:1/v1"}})
    policy = policy_from_text(POLICY, "policy.yaml", config)
    sent = json.dumps(body).encode()
    request, call, models = described_request(
        "POST", target, headers, sent, tenant=None, rules=NO_CHANGES, clock=FakeClock()
    )
    dialect = None if request.dialect is None else request.dialect.name
    route = find_route(request, call, models, policy)
    assert (request.path, dialect, request.model, request.client.credentials.key, route.name) == expected
    assert read_body(request, sent)[1] == models


def test_a_description_may_name_its_tenant() -> None:
    request, _, _ = described_request(
        "POST", CHAT, {"Authorization": "Bearer ann"}, json.dumps(chat()).encode(), tenant="acme", rules=None,
        clock=FakeClock(),
    )  # fmt: skip
    assert (request.client.tenant, request.client.credentials.key) == ("acme", None)


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, POLICY) as served:
        yield served


async def by_plain(served: Served, target: str, headers: Mapping[str, str], body: bytes, *more: str) -> str:
    lines = [f"POST {target} HTTP/1.1", "Host: g", "Content-Type: application/json", *more]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not any("chunked" in line for line in more):
        lines.append(f"Content-Length: {len(body)}")
    else:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with connected(served.url) as wire:
        await wire.send("\r\n".join([*lines, "", ""]).encode() + body)
        return (await wire.message()).all("x-nearhit-route")[0]


@pytest.mark.parametrize(("target", "headers", "body", "expected"), ROWS)
async def test_every_way_in_takes_the_same_route(
    served: Served,
    upstream: Upstream,
    target: str,
    headers: dict[str, str],
    body: dict[str, Any],
    expected: tuple[str, str | None, str, str | None, str],
) -> None:
    sent, (path, dialect, _, key, route) = json.dumps(body).encode(), expected
    assert await by_plain(served, target, headers, sent) == route
    assert await by_plain(served, target, headers, sent, "Transfer-Encoding: chunked") == route  # aiohttp reads it
    assert await by_plain(served, f"http://g{target}", headers, sent) == route
    assert {call.path.partition("?")[0] for call in upstream.calls} == {path}
    owner = {"Authorization": f"Bearer {key}"} if key else {}
    if "?key=" not in target:
        described = await served.post("/v1/jobs", {"path": target, "body": body}, headers)
        preferred = await served.post(
            target, sent, {**headers, "Prefer": "respond-async", "Content-Type": "application/json"}
        )
        for accepted in (described, preferred):
            assert accepted.status == 202
            done = await over(served, accepted.json["id"], owner)
            assert done["response"]["headers"]["x-nearhit-route"] == route
    if dialect is not None:
        explained = await served.session.post(
            served.admin_url + "/admin/explain", json={"path": target, "headers": headers, "body": body}
        )
        assert (await explained.json())["route"] == route


def test_subjects_are_the_user_and_the_key() -> None:
    digests = SubjectDigests(b"k" * 32)
    assert digests.of_request("ann", "app") == (digests.of("user", "ann"), digests.of("key", "app"))
