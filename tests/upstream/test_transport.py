"""The way to a backend: private authorities, client certificates, proxies, and headers of the gateway."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from gateway.cli.doctor.network import inspect_backends
from gateway.config.load import read_config
from gateway.errors import StartupError
from gateway.upstream.http_upstreams import proxy_of
from gateway.upstream.no_proxy import is_direct
from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def over_tls(authority: trustme.CA, clients: trustme.CA) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve chats to clients that have a certificate. Yield the URL and the names of those clients."""
    context, names = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[str]()
    authority.issue_cert("localhost").configure_cert(context)
    clients.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    upstream = Upstream()

    async def handle(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        certificate = request.transport.get_extra_info("peercert")
        names.extend(value for _, value in certificate["subjectAltName"])
        response = await upstream.handle(request)
        response.headers["Connection"] = "close"
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://localhost:{runner.addresses[0][1]}/v1", names
    finally:
        await runner.cleanup()


def written(folder: Path, authority: trustme.CA, name: str) -> dict[str, str]:
    """Write a client certificate, and return the section `tls`."""
    certificate = authority.issue_cert(name)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "client.key"))
    return {"ca": str(folder / "ca.pem"), "certificate": str(folder / "client.pem"), "key": str(folder / "client.key")}


@pytest.mark.parametrize("client", ["own", "aiohttp"])
async def test_a_backend_of_a_private_authority_gets_the_client_certificate_also_a_renewed_one(
    authority: trustme.CA, tmp_path: Path, client: str
) -> None:
    async with over_tls(authority, authority) as (url, names):
        tls = written(tmp_path, authority, "one.example")
        backends = {
            "main": {"adapter": "openai", "url": url, "tls": tls, "client": client},
            "other": {"adapter": "openai", "url": url, "client": client},
        }
        policy = NO_CACHE.replace("match: {}", "match: {model: other}").replace("backend: main", "backend: other")
        policy += "  - {name: rest, match: {}, route: {backend: main}}\n"
        policy = policy.replace("name: default", "name: other").replace("name: rest", "name: default")
        async with gateway_of(config_of(tmp_path / "data", backends), policy) as served:
            assert (await served.chat("a")).status == 200
            written(tmp_path, authority, "two.example")
            assert (await served.chat("b")).status == 200
            (tmp_path / "client.key").write_text("half writt")
            assert (await served.chat("c")).status == 200
            assert (await served.chat("d", model="other")).status == 502
    assert names == ["one.example", "two.example", "two.example"]


class ConnectProxy:
    """A proxy that opens tunnels and forwards requests, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.credentials: list[str] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode().split("\r\n")
        self.asked.append(line)
        self.credentials += [field.split(": ")[1] for field in fields if field.lower().startswith("proxy-auth")]
        method, target, _ = line.split(" ")
        host, _, port = target.removeprefix("http://").partition("/")[0].partition(":")
        to_reader, to_writer = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            to_writer.write(head)
        try:
            await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))
        finally:
            writer.close()
            to_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    if writer.can_write_eof():
        writer.write_eof()


async def test_calls_go_through_the_proxy_of_their_backend(
    authority: trustme.CA, upstream: Upstream, tmp_path: Path
) -> None:
    proxy = ConnectProxy()
    async with proxy.serving() as address, over_tls(authority, authority) as (url, _):
        tls = written(tmp_path, authority, "one.example")
        backends = {
            "main": {"adapter": "openai", "url": url, "tls": tls, "proxy": address},
            "plain": {"adapter": "openai", "url": upstream.url, "proxy": "environment"},
        }
        policy = NO_CACHE + "  - {name: rest, match: {}, route: {backend: main}}\n"
        policy = policy.replace(
            "match: {}\n    route: {backend: main}", "match: {model: plain}\n    route: {backend: plain}"
        )
        policy = policy.replace("name: default", "name: plain").replace("name: rest", "name: default")
        environ = {"HTTP_PROXY": address.replace("://", "://me:secret@"), "NO_PROXY": "localhost"}
        async with gateway_of(config_of(tmp_path / "data", backends), policy, environ) as served:
            for i in range(2):
                assert (await served.chat(f"{i}", stream=bool(i))).status == 200
                assert (await served.chat(f"{i}", model="plain")).status == 200
    host = url.removeprefix("https://").removesuffix("/v1")
    assert proxy.asked[0] == f"CONNECT {host} HTTP/1.1"
    assert f"POST {upstream.url}/chat/completions HTTP/1.1" in proxy.asked
    assert base64.b64decode(proxy.credentials[0].removeprefix("Basic ")) == b"me:secret"


PROXY_FAULTS = {
    "credentials": (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 6\r\n\r\nsecret", "status 407"),
    "a refusal": (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "status 403"),
    "a close": (b"", "the proxy opens no tunnel"),
    "nonsense": (b"SSH-2.0-OpenSSH\r\n\r\n", "the proxy opens no tunnel"),
    "silence": (None, "sent no answer in time"),
    "silence in the tunnel": (b"HTTP/1.1 200 OK\r\n\r\n", "sent no answer in time"),
}


@pytest.mark.parametrize(("answer", "words"), PROXY_FAULTS.values(), ids=PROXY_FAULTS)
async def test_a_proxy_that_opens_no_tunnel_is_named_soon_and_another_backend_answers(
    upstream: Upstream, tmp_path: Path, answer: bytes | None, words: str
) -> None:
    asked: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer or b"")
        if answer is None or b" 200 " in answer:
            await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        timeouts = {"connect": "500ms", "first_byte": "10m", "total": "10m"}
        common = {"adapter": "openai", "timeouts": timeouts, "proxy": proxy, "retries": {"attempts": 1}}
        backends = {
            "main": {**common, "url": "https://models.example/v1"},
            "other": {"adapter": "openai", "url": upstream.url},
        }
        async with gateway_of(config_of(tmp_path, backends), NO_CACHE) as served:
            refusal = await served.chat("a")
            assert (refusal.status, words in str(refusal.body)) == (504 if "in time" in words else 502, True), str(
                refusal.body
            )
            assert "secret" not in str(refusal.body)
        assert asked[0].startswith(b"CONNECT models.example:443 HTTP/1.1\r\n")
        policy = NO_CACHE.replace("route: {backend: main}", "route: {backend: main, fallback: [other]}")
        async with gateway_of(config_of(tmp_path, backends), policy) as served:
            assert (await served.chat("a")).status == 200


async def test_credentials_that_a_proxy_wants_for_a_plain_call_are_no_answer_of_the_server(
    upstream: Upstream, tmp_path: Path
) -> None:
    async def refuse(request: web.Request, _: object) -> web.StreamResponse:
        return web.Response(status=407, headers={"Proxy-Authenticate": "Basic"})

    upstream.answer = refuse
    proxy = upstream.url.removesuffix("/v1")
    backends = {"main": {"adapter": "openai", "url": "http://models.example/v1", "proxy": proxy}}
    async with gateway_of(config_of(tmp_path, backends), NO_CACHE) as served:
        refusal = await served.chat("a")
    assert (refusal.status, "the proxy answers with status 407" in str(refusal.body)) == (502, True)


async def test_the_doctor_takes_the_way_of_the_backend_and_says_what_is_wrong_with_it(
    authority: trustme.CA, tmp_path: Path
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    async with over_tls(authority, authority) as (url, _), await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tls = written(tmp_path, authority, "one.example")
        backends = {
            "good": {"adapter": "openai", "url": url, "tls": tls},
            "untrusted": {"adapter": "openai", "url": url, "tls": {**tls, "ca": str(stranger)}},
            "behind": {"adapter": "openai", "url": "https://unknown.invalid/v1", "proxy": proxy},
        }
        good, untrusted, behind = await inspect_backends(config_of(tmp_path / "data", backends), {})
    assert good.found.endswith("answers")
    assert "its certificate is not trusted" in untrusted.found
    assert "the proxy answers with status 407" in behind.found


async def test_a_tunnel_to_an_address_of_ipv6_names_it_in_brackets(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        backends = {"main": {"adapter": "openai", "url": "https://[fd00::5]:8443/v1", "proxy": proxy}}
        async with gateway_of(config_of(tmp_path, backends), NO_CACHE) as served:
            assert (await served.chat("a")).status == 502
    line, host, *_ = heads[0].split(b"\r\n")
    assert (line, host) == (b"CONNECT [fd00::5]:8443 HTTP/1.1", b"Host: [fd00::5]:8443")


LAST = "  - {name: default, match: {}, cache: {exact: off, semantic: off}, route: {backend: plain}}\n"


@pytest.mark.parametrize("client", ["own", "aiohttp"])
async def test_both_clients_say_alike_why_there_is_no_connection(
    authority: trustme.CA, tmp_path: Path, client: str
) -> None:
    stranger = trustme.CA()
    async with over_tls(authority, authority) as (url, _):
        written(tmp_path, stranger, "one.example")
        common = {"adapter": "openai", "client": client, "retries": {"attempts": 1}}
        trusting = {"ca": str(tmp_path / "authority.pem")}
        authority.cert_pem.write_to_path(trusting["ca"])
        stranger_of = {**trusting, "certificate": str(tmp_path / "client.pem"), "key": str(tmp_path / "client.key")}
        backends = {
            "untrusted": {**common, "url": url, "tls": {"ca": str(tmp_path / "ca.pem")}},
            "plain": {**common, "url": url.replace("https", "http")},
            "refused": {**common, "url": f"http://127.0.0.1:{free_ports(1)[0]}/v1"},
            "stranger": {**common, "url": url, "tls": stranger_of},
        }
        routes = "".join(
            f"  - {{name: {name}, match: {{model: {name}}}, cache: {{exact: off, semantic: off}}, "
            f"route: {{backend: {name}}}}}\n"
            for name in backends
        )
        async with gateway_of(config_of(tmp_path / "data", backends), f"version: 1\nroutes:\n{routes}{LAST}") as served:
            refusals = {name: (await served.chat("a", model=name)) for name in backends}
    assert {each.status for each in refusals.values()} == {502}
    assert "its certificate is not trusted" in str(refusals["untrusted"].body)
    assert "connection refused" in str(refusals["refused"].body)


ENVIRON = {
    "https_proxy": "http://low:1",
    "HTTPS_PROXY": "http://up:1",
    "ALL_PROXY": "all:3",
    "NO_PROXY": ".corp,10.0.0.1",
}
WAYS: dict[tuple[str | None, str], str | None] = {
    (None, "https://h/v1"): None,
    ("http://p:3128", "https://x.corp/v1"): "http://p:3128",
    ("environment", "https://h/v1"): "http://low:1",
    ("environment", "http://h/v1"): "http://all:3",
    ("environment", "https://x.corp/v1"): None,
    ("environment", "https://10.0.0.1:8443/v1"): None,
}
DIRECT = {
    "10.0.0.0/8": ["https://10.1.2.3:8443"],
    "10.1.2.3:8443": ["https://10.1.2.3:8443"],
    "10.1.2.3:443": ["https://10.1.2.3"],
    "fd00::/8": ["https://[fd00::5]:8443", "https://[fd00:0::5]"],
    "[fd00::5]:8443": ["https://[fd00::5]:8443"],
    "[fd00::5]": ["https://[fd00::5]", "https://[fd00::5]:1"],
    "fd00:0::5": ["https://[fd00::5]"],
    "::ffff:10.1.2.3": ["https://10.1.2.3"],
    "example.com": ["https://example.com", "https://a.example.com:1", "https://EXAMPLE.com.", "http://b.a.example.com"],
    ".example.com": ["https://example.com", "https://a.example.com"],
    "*.example.com": ["https://a.example.com"],
    "example.com:8443": ["https://a.example.com:8443"],
    "example.com:443": ["https://example.com"],
    "example.com:80": ["http://example.com"],
    "EXAMPLE.com.": ["https://a.example.com"],
    "foo bar.org\texample.com": ["https://a.example.com"],
    "foo, *": ["https://a.example.com", "https://[::1]:5", "https://10.0.0.1"],
}
PROXIED = {
    "10.1.2.3:8443": ["https://10.1.2.3:8444", "https://10.1.2.3"],
    "[fd00::5]:8443": ["https://[fd00::5]"],
    "::1": ["https://[ff::1]", "https://10.0.0.1"],
    "example.com": ["https://badexample.com", "https://example.com.evil", "https://com"],
    "example.com:8443": ["https://a.example.com", "https://badexample.com:8443"],
    "0.0.1": ["https://10.0.0.1"],
    "10.0.0.0/99": ["https://10.0.0.1"],
    ",, .,*.": ["https://a.b", "https://10.0.0.1"],
}


@pytest.mark.parametrize(("excluded", "urls"), DIRECT.items(), ids=DIRECT)
def test_what_no_proxy_lists_is_called_directly(excluded: str, urls: list[str]) -> None:
    assert [url for url in urls if not is_direct(url, excluded)] == []


@pytest.mark.parametrize(("excluded", "urls"), PROXIED.items(), ids=PROXIED)
def test_what_no_proxy_does_not_list_goes_through_the_proxy(excluded: str, urls: list[str]) -> None:
    assert [url for url in urls if is_direct(url, excluded)] == []


@pytest.mark.parametrize(("asked", "way"), WAYS.items())
def test_the_proxy_is_that_of_the_setting_or_of_the_environment(asked: tuple[str | None, str], way: str | None) -> None:
    setting, url = asked
    proxy = proxy_of(setting, url, ENVIRON)
    assert (None if proxy is None else proxy.rstrip("/")) == way


@pytest.mark.parametrize("value", ["socks5://me:secret@h:1", "://", "http://"])
def test_a_variable_without_a_usable_proxy_stops_the_start_and_is_not_repeated(value: str) -> None:
    with pytest.raises(StartupError, match="HTTPS_PROXY is no proxy") as raised:
        proxy_of("environment", "https://h/v1", {"HTTPS_PROXY": value})
    assert "secret" not in str(raised.value)


async def test_headers_of_the_gateway_replace_those_of_the_client_on_every_path(
    upstream: Upstream, tmp_path: Path
) -> None:
    headers = {"X-Team": "gold", "Authorization": "Basic bWU6c2VjcmV0"}
    backends = {"main": {"adapter": "openai", "url": upstream.url, "headers": headers}}
    sent = {"x-team": "lead", "Authorization": "Bearer of-the-client", "x-other": "kept"}
    async with gateway_of(config_of(tmp_path, backends), NO_CACHE) as served:
        await served.chat("a", headers=sent)
        await served.chat("a", headers=sent)
        await served.get("/v1/models", sent)
        await served.post("/v1/other", {}, sent)
        await served.post(
            "/v1/messages", {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}, sent
        )
    assert len(upstream.calls) == 5
    for call in upstream.calls:
        lower = {name.lower(): value for name, value in call.headers.items()}
        assert (lower["x-team"], lower["authorization"]) == ("gold", "Basic bWU6c2VjcmV0")
        assert "of-the-client" not in str(lower)
        assert lower["x-other"] == "kept"


FAULTS = {
    "headers: {Host: x}": "headers: host is not for the configuration to set",
    "headers: {content-length: x}": "headers: content-length is not for the configuration to set",
    'headers: {x-key: "sk-secret\\r\\nx: y"}': "headers: the value of x-key is none",
    "headers: {x-key: [sk-secret]}": "headers: the value of x-key is none",
    "headers: {x-a: b, X-A: c}": "headers: x-a is there twice",
    'headers: {"x y": b}': "headers: expected the name of a header",
    "api_key_file: key.txt, headers: {Authorization: Basic sk-secret}": "headers: authorization is the header of "
    "'api_key_file'",
    "api_key_command: 'true', api_version: 2024-10-21, headers: {api-key: sk-secret}": "headers: api-key is the header",
    "upstreams: [{url: https://b/v1, api_key_file: key.txt}], headers: {authorization: sk-secret}": "headers: authoriz",
    "proxy: socks5://h:1": "proxy: expected a URL such as http://proxy:3128, environment or off",
    "proxy: http://me:sk-secret@h:1": "proxy: the URL contains credentials",
    "tls: {certificate: c.pem}": "tls.certificate: needs key, expected both or neither",
    "tls: {ca: none.pem}": "tls: the files cannot be used: No such file or directory",
    "tls: {ca: empty.pem}": "tls: the files cannot be used",
}


@pytest.mark.parametrize(("keys", "sentence"), FAULTS.items(), ids=FAULTS)
def test_check_tells_each_fault_of_the_way_to_a_backend(tmp_path: Path, keys: str, sentence: str) -> None:
    (tmp_path / "empty.pem").write_text("")
    (tmp_path / "key.txt").write_text("sk-1")
    file = tmp_path / "config.yaml"
    url = "" if "upstreams" in keys else f"url: https://host{'' if 'api_version' in keys else '/v1'}, "
    file.write_text(f"version: 1\nbackends:\n  main: {{adapter: openai, {url}{keys}}}\n")
    faults = [f"{'.'.join(map(str, each.path))}: {each.message}" for each in read_config(file, {}).faults]
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"backends.main.{sentence}")
    assert "sk-secret" not in faults[0]


def test_tls_of_a_backend_without_tls_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("version: 1\nbackends:\n  main: {adapter: openai, url: http://host/v1, tls: {}}\n")
    (fault,) = read_config(file, {}).faults
    assert fault.message.startswith("is for https:// and there is an http:// URL")
