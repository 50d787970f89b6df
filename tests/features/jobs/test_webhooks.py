"""Webhooks: signed, told again, and told to nobody who must not be asked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.adapters.system.ssrf_guard import TargetRefused, check_url, is_public
from gateway.features.jobs import webhook_client, webhook_delivery
from gateway.features.jobs.retry_policy import backoff_s
from gateway.features.jobs.store import WebhookOutcome
from gateway.features.jobs.webhook_client import WebhookClient
from gateway.features.jobs.webhook_delivery import (
    MAX_INFLIGHT,
    MAX_PER_TENANT,
    SecretInvalid,
    outcome_of,
    retry_delay_s,
    secret_of,
)
from tests.features.jobs.asking import ALICE, BOB, chat, jobs_of, main_of, over, submit
from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

RAW = bytes(range(32))
SECRET = {"HOOK": "whsec_" + base64.b64encode(RAW).decode()}


@dataclass
class Receiver:
    """What a webhook was told; `statuses` are answered in turn, then 204."""

    url: str = ""
    connections: int = 0
    hanging: str = ""  # a path whose requests wait for `release`
    held: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)
    told: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == self.hanging:
            self.held += 1
            await self.release.wait()
            return web.Response(status=204)
        self.told.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"Location": self.url + "/elsewhere"} if 300 <= status < 400 else {})


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = "http://127.0.0.1:{}".format(*runner.addresses[0][1:2])
    try:
        yield receiver
    finally:
        await runner.cleanup()


def verified(headers: dict[str, str], body: bytes) -> bool:
    """As the specification says it, by another hand than the gateway's: of the signatures in the header one is that of
    id, timestamp and body, joined with dots."""
    said = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    expected = base64.b64encode(hmac.digest(RAW, said, hashlib.sha256)).decode()
    return any(
        version == "v1" and hmac.compare_digest(signature, expected)
        for version, _, signature in (part.partition(",") for part in headers["webhook-signature"].split(" "))
    )


def jobs(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return {"webhook_secret_env": "HOOK", "webhook_hosts": [receiver.url.removeprefix("http://")], **more}


async def test_a_webhook_is_told_the_result_and_can_verify_it(upstream: Upstream, tmp_path: Path) -> None:
    async with receiving() as receiver:
        config = config_of(tmp_path, main_of(upstream), jobs=jobs(receiver))
        async with gateway_of(config, NO_CACHE, SECRET) as served:
            job = await submit(served, "tell me", webhook=receiver.url + "/hook")
            await until(lambda: receiver.told)
            ((headers, body),) = receiver.told
            assert verified(headers, body)
            assert not verified(headers, body + b" ")
            assert headers["webhook-id"] == f"msg_{job}"
            told = json.loads(body)
            assert told["type"] == "job.completed"
            assert told["data"]["id"] == job
            assert told["data"]["response"]["body"]["choices"][0]["message"]["content"] == "upstream answers: tell me"
            await until(lambda: served.gateway.parts.telemetry.job_webhooks.values.get(("delivered",)) == 1)


async def test_the_header_names_a_webhook_too_and_a_cancelled_job_is_told(upstream: Upstream, tmp_path: Path) -> None:
    async with receiving() as receiver:
        config = config_of(tmp_path, main_of(upstream), jobs=jobs(receiver))
        async with gateway_of(config, NO_CACHE, SECRET) as served:
            upstream.gate.clear()
            headers = {"Prefer": "respond-async", "X-Job-Webhook": receiver.url + "/hook"}
            job = (await served.chat("never mind", headers=headers)).json["id"]
            async with served.session.delete(f"{served.url}/v1/jobs/{job}"):
                pass
            await until(lambda: receiver.told)
            assert json.loads(receiver.told[0][1])["type"] == "job.cancelled"


async def test_a_webhook_that_fails_is_told_again_under_the_same_id(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_delivery, "BASE_S", 0.1)  # what pauses there are is `retry_delay_s`'s, and tested there
    async with receiving() as receiver:
        receiver.statuses = [500, 302]
        config = config_of(tmp_path, main_of(upstream), jobs=jobs(receiver))
        async with gateway_of(config, NO_CACHE, SECRET) as served:
            job = await submit(served, "again", webhook=receiver.url + "/hook")
            await until(lambda: len(receiver.told) == 3)
            assert {headers["webhook-id"] for headers, _ in receiver.told} == {f"msg_{job}"}
            assert all(verified(headers, body) for headers, body in receiver.told)
            await until(lambda: served.gateway.parts.telemetry.job_webhooks.values.get(("delivered",)) == 1)


async def test_receivers_that_hang_hold_no_more_than_their_tenants_places(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another tenant are told meanwhile, though they came later."""
    monkeypatch.setattr(webhook_client, "TOTAL_S", 3600.0)  # a receiver that hangs is not given up in this test
    async with receiving() as receiver:
        receiver.hanging = "/hang"
        config = config_of(tmp_path, main_of(upstream), jobs=jobs(receiver))
        async with gateway_of(config, NO_CACHE, SECRET) as served:
            for number in range(MAX_INFLIGHT + 1):
                await submit(served, f"hang {number}", ALICE, webhook=receiver.url + "/hang")
            await until(lambda: receiver.held == MAX_PER_TENANT)
            job = await submit(served, "tell me", BOB, webhook=receiver.url + "/hook")
            await until(lambda: receiver.told)
            assert receiver.told[0][0]["webhook-id"] == f"msg_{job}"
            assert receiver.held == MAX_PER_TENANT
            receiver.release.set()
            await until(lambda: receiver.held == MAX_INFLIGHT + 1)


async def test_a_webhook_that_is_gone_is_told_no_more(upstream: Upstream, tmp_path: Path) -> None:
    async with receiving() as receiver:
        receiver.statuses = [410]
        config = config_of(tmp_path, main_of(upstream), jobs=jobs(receiver))
        async with gateway_of(config, NO_CACHE, SECRET) as served:
            await over(served, await submit(served, "gone", webhook=receiver.url + "/hook"))
            await until(lambda: served.gateway.parts.telemetry.job_webhooks.values.get(("gone",)) == 1)
            async with asyncio.timeout(120):
                while (await jobs_of(served).counts()).webhooks:
                    await asyncio.sleep(0.01)


async def test_without_a_secret_there_are_no_webhooks(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, main_of(upstream)), NO_CACHE) as served:
        body = {"path": "/v1/chat/completions", "body": chat("x"), "webhook": "https://app.example/hook"}
        assert "jobs.webhook_secret_env" in (await served.post("/v1/jobs", body)).json["error"]["message"]


PRIVATE = [
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1",
    "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2001:0:53aa:64c::1", "fe80::1", "fe80::1%lo", "fc00::1",
    "fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1", "100::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_of_the_public_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_addresses_that_are(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        *(f"https://{'[' + a + ']' if ':' in a else a}/hook" for a in PRIVATE if "%" not in a),
        "http://app.example/hook", "ftp://app.example/", "https://user:secret@app.example/", "https://", "https:///x",
        "https://app.example:99999/", "https://app.example\\@127.0.0.1/", "https://app.example/ x", "//app.example/",
        "file:///etc/passwd", "https://app.example/\r\nX: y", "gopher://127.0.0.1:6379/_", "", 7, "https://é.example/",
        "https://app.example/" + "x" * 3000,
    ],
)  # fmt: skip
def test_urls_that_are_refused_when_the_job_comes(url: object) -> None:
    with pytest.raises(TargetRefused):
        check_url(url, frozenset())


def test_the_operator_may_name_hosts_that_are_private() -> None:
    assert check_url("http://10.0.0.1/x", frozenset({"10.0.0.1"}))
    assert check_url("http://hooks.internal:8000/x", frozenset({"hooks.internal:8000"}))
    with pytest.raises(TargetRefused):
        check_url("http://hooks.internal:8001/x", frozenset({"hooks.internal:8000"}))


class Names(AbstractResolver):
    """Names that stand for what the test says, another address each time they are asked for."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        address = self._addresses[min(self.asked, len(self._addresses) - 1)]
        self.asked += 1
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, list[object]]]:
    """Every local address: whoever connects is noted."""
    connected: list[object] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(note, None, 0, family=socket.AF_INET)
    try:
        yield server.sockets[0].getsockname()[1], connected
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::ffff:127.0.0.1"])
async def test_a_name_that_stands_for_a_private_address_gets_no_connection(address: str) -> None:
    async with listening() as (port, connected):
        client = WebhookClient(frozenset(), Names(address))
        told = await client.send(f"https://hooks.example:{port}/x", {}, b"{}")
        await client.close()
    assert (told, connected) == (WebhookOutcome(None, "refused"), [])


async def test_a_name_that_changes_its_mind_gets_no_connection() -> None:
    """It is resolved once for each connection, and what it is resolved to is what is looked at."""
    names = Names("192.0.2.1", "127.0.0.1")
    async with listening() as (port, connected):
        client = WebhookClient(frozenset(), names)
        for _ in range(3):
            assert (await client.send(f"https://rebound.example:{port}/x", {}, b"{}")).word == "refused"
        await client.close()
    assert (names.asked, connected) == (3, [])


async def test_a_literal_address_gets_no_connection_though_it_was_let_in() -> None:
    """aiohttp asks no resolver for it; the socket is where it ends."""
    async with listening() as (port, connected):
        client = WebhookClient(frozenset())
        session = client._sessions.of(f"https://app.example:{port}/")
        with pytest.raises(Exception, match="Cannot connect"):
            await session.post(f"http://127.0.0.1:{port}/")
        assert (await client.send(f"https://127.0.0.1:{port}/", {}, b"{}")).word == "refused"
        await client.close()
    assert connected == []


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as receiver:
        receiver.statuses = [307]
        client = WebhookClient(frozenset({receiver.url.removeprefix("http://")}))
        assert (await client.send(receiver.url + "/hook", {}, b"{}")).status == 307
        await client.close()
        assert len(receiver.told) == 1


async def test_a_client_that_was_closed_may_tell_again() -> None:
    """What tells is begun again where it has failed."""
    async with receiving() as receiver:
        client = WebhookClient(frozenset({receiver.url.removeprefix("http://")}))
        for _ in range(2):
            assert (await client.send(receiver.url + "/hook", {}, b"{}")).status == 204
            await client.close()


def test_how_long_until_it_is_told_again() -> None:
    failed = WebhookOutcome(500, "status 500")
    assert retry_delay_s(failed, 1, 8, 1.0) == 5.0
    assert retry_delay_s(failed, 3, 8, 1.0) == 20.0
    assert retry_delay_s(failed, 8, 8, 1.0) is None
    assert (
        retry_delay_s(WebhookOutcome(204, ""), 1, 8, 1.0) is retry_delay_s(WebhookOutcome(410, ""), 1, 8, 1.0) is None
    )
    assert backoff_s(100, 1.0, 2.5, 3600.0) == 3600.0
    assert outcome_of(failed, None) == "given_up"


@pytest.mark.parametrize("text", ["", "secret", "whsec_", "whsec_!!!", "whsec_c2hvcnQ=", RAW.hex()])
def test_a_secret_that_is_none_is_said_without_repeating_it(text: str) -> None:
    with pytest.raises(SecretInvalid, match="expected whsec_") as caught:
        secret_of(text)
    assert not text or text not in str(caught.value) or text == "whsec_"
