"""TLS of the data and the gRPC port: real handshakes, certificates that are replaced, clients that have none."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from openai import AsyncOpenAI, DefaultAioHttpClient

from gateway.context import RequestContext
from gateway.errors import StartupError
from gateway.messages import Response
from tests.fixtures.gateways import Served, config_of, fast_path, gateway_of
from tests.fixtures.upstream import Upstream

HEALTH = health_pb2.HealthCheckRequest


class Files:
    """A certificate of `authority` for localhost, in files, as an operator has it."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self.write(authority)

    def write(self, authority: trustme.CA) -> None:
        issued = authority.issue_cert("localhost", "127.0.0.1")
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    @property
    def section(self) -> dict[str, str]:
        return {"certificate": str(self.certificate), "key": str(self.key)}


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Files:
    return Files(tmp_path, authority)


@pytest.fixture
def serving(tmp_path: Path, upstream: Upstream) -> Callable[..., Any]:
    def build(tls: dict[str, str], **server: Any) -> Any:
        backends = {"main": {"adapter": "openai", "url": upstream.url}}
        return gateway_of(config_of(tmp_path / "data", backends, server={"tls": tls, **server}))

    return build


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def base(served: Served) -> str:
    return f"https://127.0.0.1:{served.gateway.data_address[1]}"


async def healthy(served: Served, context: ssl.SSLContext) -> int:
    """Over a connection of its own."""
    async with aiohttp.ClientSession() as session, session.get(base(served) + "/healthz", ssl=context) as answer:
        return answer.status


async def test_a_real_client_asks_over_tls(
    files: Files, authority: trustme.CA, serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A miss, a hit of all steps, and a hit of the fast path."""

    def nobody(_: RequestContext) -> Response:
        raise AssertionError("a step was asked")

    async with serving(files.section) as served:
        connector = aiohttp.TCPConnector(ssl=trusting(authority))
        async with aiohttp.ClientSession(connector=connector) as session:
            for number, expected in enumerate(("fwd=miss", "; hit;", "; hit;", "; hit;")):
                body = {"model": "m", "messages": [{"role": "user", "content": "What is TLS?"}]}
                async with session.post(base(served) + "/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200
                    assert expected in answer.headers["Cache-Status"]
                if number == 2:  # it has been remembered with its second hit
                    monkeypatch.setattr(fast_path(served), "_inner", nobody)
        assert served.gateway.describe()["listen"] == base(served)


async def test_a_stream_hit_comes_whole_over_tls(
    files: Files, authority: trustme.CA, serving: Callable[..., Any]
) -> None:
    async with (
        serving(files.section) as served,
        AsyncOpenAI(
            base_url=base(served) + "/v1", api_key="k", http_client=DefaultAioHttpClient(verify=trusting(authority))
        ) as client,
    ):
        texts = []
        for _ in range(2):
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Tell me more."}], stream=True
            )
            texts.append("".join([c.choices[0].delta.content or "" async for c in stream if c.choices]))
        assert texts[0] == texts[1] != ""


async def test_plain_http_gets_no_answer_and_does_no_harm(
    files: Files, authority: trustme.CA, serving: Callable[..., Any]
) -> None:
    async with serving(files.section) as served:
        with pytest.raises(aiohttp.ClientError):
            async with served.session.get(base(served).replace("https", "http") + "/healthz"):
                pass
        assert await healthy(served, trusting(authority)) == 200


async def test_a_replaced_certificate_is_used_without_a_restart(
    files: Files, authority: trustme.CA, serving: Callable[..., Any]
) -> None:
    async with serving(files.section) as served:
        assert await healthy(served, trusting(authority)) == 200
        newer = trustme.CA()
        files.write(newer)
        assert await healthy(served, trusting(newer)) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await healthy(served, trusting(authority))


async def test_files_that_are_no_pair_leave_the_former_certificate_in_use(
    files: Files, authority: trustme.CA, serving: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(files.section) as served:
        files.certificate.write_text("-----BEGIN CERTIFICATE-----\nhalf of ")
        assert await healthy(served, trusting(authority)) == 200
        assert "the old one stays in use" in caplog.text
        files.write(newer := trustme.CA())
        assert await healthy(served, trusting(newer)) == 200


async def test_clients_without_a_certificate_are_refused_where_one_is_demanded(
    tmp_path: Path, files: Files, authority: trustme.CA, serving: Callable[..., Any]
) -> None:
    clients = trustme.CA()
    clients.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
    async with serving(files.section | {"client_ca": str(tmp_path / "clients.pem")}) as served:
        with pytest.raises(aiohttp.ClientError):
            await healthy(served, trusting(authority))
        stranger = trusting(authority)
        trustme.CA().issue_cert("stranger").configure_cert(stranger)
        with pytest.raises(aiohttp.ClientError):
            await healthy(served, stranger)
        known = trusting(authority)
        clients.issue_cert("client").configure_cert(known)
        assert await healthy(served, known) == 200


async def test_the_grpc_port_has_the_same_certificate_and_tells_its_health(
    files: Files, authority: trustme.CA, serving: Callable[..., Any]
) -> None:
    async with serving(files.section, grpc="127.0.0.1:0") as served:
        address = f"127.0.0.1:{served.gateway.grpc_address[1]}"

        async def status(trusted: trustme.CA) -> Any:
            credentials = grpc.ssl_channel_credentials(trusted.cert_pem.bytes())
            async with grpc.aio.secure_channel(address, credentials) as channel:
                asked = health_pb2_grpc.HealthStub(channel).Check(HEALTH(), timeout=120)
                return (await asked).status

        assert await status(authority) == health_pb2.HealthCheckResponse.SERVING
        files.write(newer := trustme.CA())
        assert await status(newer) == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError):
            await status(authority)


async def test_the_grpc_port_is_not_healthy_while_it_drains(served: Served, tmp_path: Path, upstream: Upstream) -> None:
    config = config_of(
        tmp_path / "other", {"main": {"adapter": "openai", "url": upstream.url}}, server={"grpc": "127.0.0.1:0"}
    )
    async with gateway_of(config) as served:
        address = f"127.0.0.1:{served.gateway.grpc_address[1]}"
        async with grpc.aio.insecure_channel(address) as channel:
            seen: list[int] = []
            watching = health_pb2_grpc.HealthStub(channel).Watch(HEALTH(service="inference.GRPCInferenceService"))
            seen.append((await watching.read()).status)
            following = asyncio.ensure_future(watching.read())
            await served.gateway.grpc_port.stop()
            seen.append((await following).status)
    assert seen == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: f.key.unlink(), "tls.key cannot be read: No such file or directory"),
        (lambda f: f.certificate.write_text("hello"), "expected a certificate chain and its private key in PEM form"),
        (
            lambda f: f.key.write_bytes(trustme.CA().issue_cert("x").private_key_pem.bytes()),
            "tls.key is not the key of",
        ),
    ],
)
async def test_what_is_wrong_with_the_files_is_said_at_the_start(
    files: Files, serving: Callable[..., Any], spoil: Callable[[Files], None], said: str
) -> None:
    spoil(files)
    with pytest.raises(StartupError, match=r"server\.tls: ") as raised:
        async with serving(files.section):
            pass
    assert said in str(raised.value)
