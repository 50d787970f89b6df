"""A backend's `Cache-Control` and `Vary` decide whether its answer is stored, and shared with requests in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cache.response_directives import directives_of
from tests.fixtures.gateways import Answer, Served, aboard, config_of, gateway_of
from tests.fixtures.upstream import Answer as Script
from tests.fixtures.upstream import Upstream, completion, stream
from tests.fixtures.waiting import until

SHARED = """
version: 1
routes:
  - name: default
    match: {{}}
    cache: {{exact: {{ttl: 1h}}, semantic: {{ttl: 1h, min_similarity: 0.5}}, share: {share}, vary: [{vary}]}}
    route: {{backend: main}}
"""


def policy(share: str = "tenant", vary: str = "") -> str:
    return SHARED.format(share=share, vary=vary)


def config_for(upstream: Upstream, path: Path, adapter: str = "openai") -> Any:
    return config_of(path, {"main": {"adapter": adapter, "url": upstream.url}})


def saying(headers: Mapping[str, str]) -> Script:
    """Answer with these headers and the credentials of the request."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, f"for {request.headers.get('Authorization')}"), headers=headers)

    return answer


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith("nearhit; hit")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def admissions(served: Served) -> dict[str, float]:
    values = served.gateway.parts.telemetry.admissions.values
    return {reason: count for (_, reason), count in values.items() if count}


@pytest.mark.parametrize("control", ["private", "Private, max-age=60", 'max-age=60, private="set-cookie"'])
async def test_a_private_answer_is_not_stored_for_everybody(upstream: Upstream, tmp_path: Path, control: str) -> None:
    upstream.answer = saying({"Cache-Control": control})
    async with gateway_of(config_for(upstream, tmp_path), policy("global")) as served:
        for _ in range(2):
            assert (await served.chat("hi")).cache_status == "nearhit; fwd=miss"
        assert admissions(served) == {"private": 2.0}
    assert len(upstream.calls) == 2


@pytest.mark.parametrize("share", ["tenant", "user"])
async def test_a_private_answer_is_stored_for_those_who_asked(upstream: Upstream, tmp_path: Path, share: str) -> None:
    upstream.answer = saying({"Cache-Control": "private"})
    async with gateway_of(config_for(upstream, tmp_path), policy(share)) as served:
        await served.chat("hi", headers=bearer("a"))
        assert is_hit(await served.chat("hi", headers=bearer("a")))
        assert not is_hit(await served.chat("hi", headers=bearer("b")))


@pytest.mark.parametrize(("share", "user"), [("tenant", None), ("tenant", "ann"), ("user", None)])
async def test_a_private_answer_is_stored_for_nobody_if_nothing_tells_clients_apart(
    upstream: Upstream, tmp_path: Path, share: str, user: str | None
) -> None:
    upstream.answer = saying({"Cache-Control": "private"})
    named = {} if user is None else {"user": user}
    async with gateway_of(config_for(upstream, tmp_path), policy(share)) as served:
        for _ in range(2):
            assert not is_hit(await served.chat("hi", **named))
        assert admissions(served) == {"private": 2.0}


async def test_a_private_answer_is_stored_for_a_user_without_credentials(upstream: Upstream, tmp_path: Path) -> None:
    upstream.answer = saying({"Cache-Control": "private"})
    async with gateway_of(config_for(upstream, tmp_path), policy("user")) as served:
        await served.chat("hi", user="ann")
        assert is_hit(await served.chat("hi", user="ann"))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_follower_gets_no_answer_that_is_private_to_the_leader(
    upstream: Upstream, tmp_path: Path, streamed: bool
) -> None:
    private = {"Cache-Control": "private"}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        said = request.headers["Authorization"]
        return await (stream(request, call, said, headers=private) if streamed else saying(private)(request, call))

    upstream.answer = answer
    upstream.gate.clear()
    async with gateway_of(config_for(upstream, tmp_path), policy("global")) as served:
        asked = [asyncio.create_task(served.chat("hi", headers=bearer(f"{key}-key"), stream=streamed)) for key in "abc"]
        await until(lambda: aboard(served) == 3)
        upstream.gate.set()
        for key, each in zip("abc", await asyncio.gather(*asked), strict=True):
            assert f'{key}-key"'.encode() in each.body, "its own credentials"
    assert sorted(call.headers["Authorization"][7] for call in upstream.calls) == ["a", "b", "c"]


@pytest.mark.parametrize("header", ["OpenAI-Beta", "anthropic-beta"])
async def test_headers_that_choose_a_feature_part_the_entries(upstream: Upstream, tmp_path: Path, header: str) -> None:
    async with gateway_of(config_for(upstream, tmp_path), policy()) as served:
        await served.chat("what is it", headers={header: "a=v1, b=v1"})
        assert not is_hit(await served.chat("what is it"))
        assert not is_hit(await served.chat("what is it", headers={header: "a=v2"}))
        assert not is_hit(await served.chat("what is it now", headers={header: "a=v3"})), "nor in other words"
        assert is_hit(await served.chat("what is it", headers={header: "b=v1,a=v1"})), "their order does not matter"


async def test_headers_of_the_policy_part_the_entries(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_for(upstream, tmp_path), policy(vary="Accept-Language, x-request-id")) as served:
        for name in ("accept-language", "x-request-id"):
            for _ in range(3):  # from the third on, the fast path answers
                await served.chat("what is it", headers={name: "de, en"})
            for value in ("en, de", "fr"):
                assert not is_hit(await served.chat("what is it", headers={name: value}))
                assert not is_hit(await served.chat("what is it now", headers={name: value + "x"}))
            assert is_hit(await served.chat("what is it", headers={name: "de,en"}))


async def test_inputs_of_one_call_are_parted_too(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_for(upstream, tmp_path), policy(vary="accept-language")) as served:
        for language in ("de", "en", "de"):
            body = {"model": "m", "input": ["one", "two"]}
            answer = await served.post("/v1/embeddings", body, {"Accept-Language": language})
    assert is_hit(answer)
    assert len(upstream.calls) == 2


@pytest.mark.parametrize(
    ("vary", "share", "stored"),
    [
        ("*", "tenant", False),
        ("Accept-Language", "tenant", False),
        ("accept-encoding, Accept-Language", "tenant", False),
        ("Cookie", "global", False),
        ("Authorization", "global", False),
        ("Accept-Encoding", "tenant", True),
        ("origin, Access-Control-Request-Method, Access-Control-Request-Headers", "global", True),
        ("Authorization, X-Litellm-Key", "tenant", True),
        ("Authorization, Cookie", "tenant", False),  # beside a key, cookies part nobody
        ("OpenAI-Beta", "global", True),
        ("X-Style", "global", True),
        ("", "global", True),
    ],
)
async def test_an_answer_is_stored_only_if_its_vary_is_part_of_the_key(
    upstream: Upstream, tmp_path: Path, vary: str, share: str, stored: bool
) -> None:
    upstream.answer = saying({"Vary": vary})
    async with gateway_of(config_for(upstream, tmp_path), policy(share, "x-style")) as served:
        for _ in range(2):
            answer = await served.chat("hi", headers=bearer("a"))
        assert is_hit(answer) == stored
        assert admissions(served) == ({"stored": 1.0} if stored else {"vary": 2.0})


async def test_with_keys_of_the_gateway_the_credentials_are_not_part_of_the_key(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.answer = saying({"Vary": "Cookie"})
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # SHA-256 of "abc"
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    config = config_of(tmp_path, backends, auth={"mode": "keys", "keys": {"acme": [digest]}})
    async with gateway_of(config, policy()) as served:
        for cookie in ("a", "b"):
            answer = await served.chat("hi", headers={**bearer("abc"), "Cookie": cookie})
            assert not is_hit(answer)
        assert admissions(served) == {"vary": 2.0}


def test_several_lines_are_one_list() -> None:
    read = directives_of(
        [("Vary", "A"), ("vary", "b , "), ("Cache-Control", "max-age=1"), ("cache-control", "PRIVATE")]
    )
    assert (read.vary, read.private, read.no_store) == (frozenset({"a", "b"}), True, False)
