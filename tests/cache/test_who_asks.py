"""Whoever shows another key gets no answer of Ann's, in whichever header the key stands, and cookies part nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.features.jobs.asking import over, submit
from tests.fixtures.gateways import BOTH_CACHES, LOOSE, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.waiting import until

KEYS = (
    "X-Litellm-Key", "apikey", "x-portkey-api-key", "cf-aig-authorization", "X-Forwarded-Authorization",
    "x-goog-api-key", "Ocp-Apim-Subscription-Key", "x-amzn-oidc-data", "X-Goog-Iap-Jwt-Assertion",
    "Cf-Access-Jwt-Assertion", "X-Auth-Token", "PRIVATE-TOKEN", "X-Acme-Api-Key", "X-My-Token", "Proxy-Authorization",
)  # fmt: skip
LIMITED = BOTH_CACHES.replace("    route:", "    limits: {requests: 2/h, per: tenant}\n    route:")


def of(upstream: Upstream, **more: Any) -> dict[str, Any]:
    return {"main": {"adapter": "openai", "url": upstream.url, **more}}


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_of(config_of(tmp_path, of(upstream)), LOOSE) as served:
        yield served


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith("nearhit; hit") or "collapsed" in answer.cache_status


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_in_any_header_parts_clients(served: Served, upstream: Upstream, name: str, stream: bool) -> None:
    clients = ({name: "ann-1"}, {name: "bob-2"}, {}, {name: "ann-1", "Authorization": "Bearer bob-2"})
    upstream.gate.clear()  # all of them are in flight at once
    asking = [asyncio.create_task(served.chat("what is it", headers=who, stream=stream)) for who in clients]
    await until(lambda: len(upstream.chats) == len(clients))
    upstream.gate.set()
    assert not any(map(is_hit, await asyncio.gather(*asking)))
    for stranger in ({name: "eve-3"}, {name: "ann-1", "x-api-key": "eve-3"}):
        assert not is_hit(await served.chat("what is it now", headers=stranger, stream=stream)), "in other words"
        assert is_hit(await served.chat("what is it", headers=stranger, stream=stream))
    calls = len(upstream.chats)
    for who in clients:
        for _ in range(3):  # the third one takes the fast path
            assert is_hit(await served.chat("what is it", headers=who, stream=stream))
    assert len(upstream.chats) == calls


async def test_a_key_in_the_query_owns_what_it_makes(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, of(upstream)), BOTH_CACHES) as served:
        body = {"path": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": "x"}]}}
        job = (await served.post("/v1/jobs?key=ann-1", body)).json["id"]
        assert (await served.get(f"/v1/jobs/{job}?key=ann-1")).status == 200
        for stranger in ("", "?key=bob-2", "?api_key=bob-2"):
            assert (await served.get(f"/v1/jobs/{job}{stranger}")).status == 404


@pytest.mark.parametrize("own", [True, False])
async def test_no_secret_goes_to_a_backend_with_a_key_of_its_own(upstream: Upstream, tmp_path: Path, own: bool) -> None:
    backend = of(upstream, api_key_env="OWN") if own else of(upstream)
    headers = {name: f"ann-{number}" for number, name in enumerate(KEYS)} | {"Cookie": "session=ann-x"}
    targets = ("/v1/chat/completions?key=ann-q&a=1", "/v1/things?api_key=ann-q&a=1", "/v1/audio/speech?a=1&token=ann-q")
    async with gateway_of(config_of(tmp_path, backend), LOOSE, {"OWN": "the-gateways"}) as served:
        for target in targets:
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
            assert (await served.post(target, body, headers)).status == 200
        openai = {name: key for name, key in headers.items() if name != "x-goog-api-key"}  # Google's get a merged list
        assert (await served.get("/v1/models?key=ann-q", openai)).status == 200
    for call in upstream.calls:
        sent = f"{call.path} {call.headers}"
        if own:
            assert "ann-" not in sent and "the-gateways" in sent
        else:
            assert "key=ann-q" in call.path or "token=ann-q" in call.path
            given = openai if "/models" in call.path else headers
            passed = {name for name in given if name != "Proxy-Authorization"}  # for the next hop alone
            assert all(given[name] in sent for name in passed)
        assert "a=1" in call.path or "/models" in call.path


@pytest.mark.parametrize("own", [True, False])
async def test_a_key_among_the_subprotocols_of_a_websocket_is_a_key(
    upstream: Upstream, tmp_path: Path, own: bool
) -> None:
    """Browsers can set no header there. It is the owner of what the messages make, and goes where a key may go."""
    backend = of(upstream, api_key_env="OWN") if own else of(upstream)
    seen: list[str] = []

    async def shake(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        seen.append(request.headers.get("Sec-WebSocket-Protocol", ""))
        socket = web.WebSocketResponse(protocols=("realtime",))
        await socket.prepare(request)
        await socket.close()
        return socket

    upstream.answer = shake
    async with gateway_of(config_of(tmp_path, backend), LOOSE, {"OWN": "the-gateways"}) as served:
        offered = ("realtime", "openai-insecure-api-key.ann-1")
        async with served.session.ws_connect(f"{served.url}/v1/realtime", protocols=offered) as socket:
            assert socket.protocol == "realtime"
    assert ["ann-1" in each for each in seen] == [not own]


async def test_cookies_beside_a_key_part_nobody(served: Served, upstream: Upstream) -> None:
    key = {"Authorization": "Bearer ann"}
    for cookie in ("AWSALB=1", "__cf_bm=2", "session=3", "INGRESSCOOKIE=4; x=5"):
        await served.chat("what is it", headers={**key, "Cookie": cookie})
    assert len(upstream.chats) == 1


async def test_a_balancers_cookie_alone_parts_nobody_and_a_persons_does(served: Served, upstream: Upstream) -> None:
    for number in range(4):
        await served.chat("what is it", headers={"Cookie": f"AWSALB=r{number}; session=ann; INGRESSCOOKIE=r{number}"})
    assert len(upstream.chats) == 1
    assert not is_hit(await served.chat("what is it", headers={"Cookie": "AWSALB=r0; session=bob"}))


@pytest.mark.parametrize("name", ["Cookie", "X-Random-Token", "OpenAI-Project", "X-Forwarded-User", "X-Goog-Api-Key"])
async def test_what_stands_beside_a_key_evades_no_limit(upstream: Upstream, tmp_path: Path, name: str) -> None:
    async with gateway_of(config_of(tmp_path, of(upstream)), LIMITED) as served:
        statuses = [
            (await served.chat(f"number {n}", headers={"Authorization": "Bearer ann", name: f"{n}=v{n}"})).status
            for n in range(4)
        ]
        assert statuses == [200, 200, 429, 429]
        assert (await served.chat("number 9", headers={"Authorization": "Bearer bob"})).status == 200


@pytest.mark.parametrize("name", ["Cookie", "X-Forwarded-User", "OpenAI-Organization"])
async def test_what_nobody_checks_evades_no_limit(upstream: Upstream, tmp_path: Path, name: str) -> None:
    async with gateway_of(config_of(tmp_path, of(upstream)), LIMITED) as served:
        statuses = [(await served.chat(f"number {n}", headers={name: f"n{n}=v{n}"})).status for n in range(3)]
        assert statuses == [200, 200, 429]


async def test_cookies_that_the_backend_checks_can_be_keys(upstream: Upstream, tmp_path: Path) -> None:
    auth = {"credential_headers": ["cookie"]}
    async with gateway_of(config_of(tmp_path, of(upstream), auth=auth), LIMITED) as served:
        for session in ("a", "b"):
            for number in range(4):
                cookies = {"Cookie": f"AWSALB=r{number}; session={session}"}
                await served.chat("what is it", headers=cookies)
                status = (await served.chat(f"number {number}", headers=cookies)).status
            assert status == 429
    assert len([call for call in upstream.chats if b"what is it" in call.body]) == 2


async def test_a_job_counts_for_the_account_that_sent_it(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, of(upstream, api_key_env="OWN")), LIMITED, {"OWN": "k"}) as served:
        for n in range(2):
            who = {"Authorization": "Bearer ann", "X-Random-Token": f"{n}"}
            assert (await over(served, await submit(served, f"number {n}", who), who))["response"]["status"] == 200
        assert (await served.chat("number 3", headers={"Authorization": "Bearer ann"})).status == 429
    assert not any(":nearhit" in name for call in upstream.calls for name in call.headers)


async def test_an_answer_that_varies_by_a_cookie_is_stored_only_where_cookies_part_clients(
    served: Served, upstream: Upstream
) -> None:
    async def vary(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "yes"), headers={"Vary": "Cookie"})

    upstream.answer = vary
    for headers, stored in (({"Authorization": "Bearer a", "Cookie": "s=1"}, False), ({"Cookie": "s=1"}, True)):
        await served.chat("what is it", headers=headers)
        assert is_hit(await served.chat("what is it", headers=headers)) == stored


async def test_the_configuration_says_which_headers_are_keys(upstream: Upstream, tmp_path: Path) -> None:
    auth = {"credential_headers": ["x-team", "!x-rotating-token"]}
    async with gateway_of(config_of(tmp_path, of(upstream), auth=auth), BOTH_CACHES) as served:
        for n in range(3):
            await served.chat("what is it", headers={"X-Team": "ann", "X-Rotating-Token": f"{n}"})
        assert len(upstream.chats) == 1
        assert not is_hit(await served.chat("what is it", headers={"X-Team": "bob"}))


async def test_the_first_hit_without_credentials_is_warned_of_once(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [record.message for record in caplog.records if "without credentials" in record.message]

    with caplog.at_level(logging.WARNING, "nearhit"):
        for _ in range(3):
            await served.chat("of ann", headers={"Authorization": "Bearer ann"})
        await served.chat("what is it")
        assert warnings() == []
        for _ in range(4):
            await served.chat("what is it")
            await served.chat("what is it now", stream=True)
        assert len(warnings()) == 1 and "auth.credential_headers" in warnings()[0]


async def test_clients_that_share_by_policy_are_not_warned_of(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared = BOTH_CACHES.replace("max_wrong_hits: 1%}}", "max_wrong_hits: 1%}, share: global}")
    async with gateway_of(config_of(tmp_path, of(upstream)), shared) as served:
        await served.chat("what is it")
        assert is_hit(await served.chat("what is it"))
    assert not [record for record in caplog.records if "without credentials" in record.message]


async def test_many_tenants_with_one_key_are_told_with_the_header_that_makes_them(served: Served) -> None:
    for n in range(25):
        await served.chat("what is it", headers={"Authorization": "Bearer ann", "X-Random-Token": f"{n}"})
    told = (await Served.get(served, "/v1/models")).status, served.gateway.describe()["tenants_of_a_key"]
    assert told == (200, {"tenants": 25, "headers": ["x-random-token"]})


async def test_no_key_is_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for name in KEYS:
            await served.chat("what is it", headers={name: "ann-secret"})
            await served.post("/v1/unknown?key=ann-secret", {"x": 1}, {name: "ann-secret"})
    assert "ann-secret" not in caplog.text
