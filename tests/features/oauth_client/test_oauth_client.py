"""Access tokens by client credentials: what the token endpoint and the backend get, and what a failure says."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from aiohttp import web

from gateway.config.load import read_config
from gateway.features.oauth_client.settings import OAuthIdentity
from gateway.features.oauth_client.source import TokenEndpoint
from gateway.upstream.http1.errors import NoCredentials
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream, serving

SECRET = "s3cr+t of: the gateway"
ENVIRON = {"OAUTH_SECRET": SECRET}
ADMIN = ("backends", "stats")
CLIENT = {"Authorization": "Bearer of-the-client"}


class Issuer:
    """A token endpoint, which numbers its tokens. A test may set the answer."""

    def __init__(self) -> None:
        self.upstream = Upstream("issuer")
        self.upstream.answer = self._answer
        self.answer: Any = None
        self.status = 200

    @property
    def settings(self) -> dict[str, Any]:
        url = self.upstream.url.replace("/v1", "/oauth2/token")
        return {"type": "oauth", "token_url": url, "client_id": "near hit", "client_secret_env": "OAUTH_SECRET"}

    @property
    def forms(self) -> list[dict[str, str]]:
        return [dict(parse_qsl(call.body.decode())) for call in self.upstream.calls]

    async def _answer(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        answer = self.answer
        if answer is None:
            answer = {"access_token": f"token-{len(self.upstream.calls)}", "token_type": "bearer", "expires_in": "3600"}
        if isinstance(answer, dict):
            return web.json_response(answer, status=self.status)
        return web.Response(body=answer, status=self.status, headers={"Location": "http://127.0.0.1:9/"})


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    async with serving(issuer.upstream):
        yield issuer


async def test_requests_share_a_token_which_is_fetched_again_before_its_end_and_at_a_401(
    upstream: Upstream, issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, accepted = FakeClock(), {"token-1", "token-2"}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.headers["Authorization"].removeprefix("Bearer ") not in accepted:
            return web.json_response({"error": {"message": "no"}}, status=401)
        return await upstream._default(request, upstream.calls[-1].body)

    upstream.answer = answer
    identity = {**issuer.settings, "scope": "a b", "audience": "https://models"}
    backends = {"main": {"adapter": "openai", "url": upstream.url, "identity": identity}}
    async with gateway_of(config_of(tmp_path, backends), NO_CACHE, ENVIRON, clock) as served:
        answers = await asyncio.gather(*(served.chat(str(i), headers=CLIENT) for i in range(8)))
        assert {each.status for each in answers} == {200}
        assert len(issuer.forms) == 1
        clock.advance(3600)
        assert (await served.chat("later")).status == 200
        assert len(issuer.forms) == 2
        accepted.clear()
        accepted.add("token-3")
        answers = await asyncio.gather(*(served.chat(f"revoked {i}") for i in range(8)))
        assert {each.status for each in answers} == {200}
        assert len(issuer.forms) == 3
        shown = [
            await (await served.session.get(served.admin_url + path)).text()
            for path in ("/admin/backends", "/admin/stats")
        ]
    assert issuer.forms[0] == {"grant_type": "client_credentials", "scope": "a b", "audience": "https://models"}
    basic = b64decode(issuer.upstream.calls[0].headers["Authorization"].removeprefix("Basic ")).decode()
    assert basic == "near+hit:s3cr%2Bt+of%3A+the+gateway"
    for secret in ("token-1", SECRET):
        assert secret not in "".join(shown) + caplog.text


def source_of(issuer: Issuer, **more: Any) -> TokenEndpoint:
    settings = OAuthIdentity.model_validate({**issuer.settings, **more})
    return TokenEndpoint(settings, SECRET, FakeClock())


async def test_name_and_secret_may_go_in_the_body(issuer: Issuer) -> None:
    token = await source_of(issuer, client_auth="post", resource="api://x").read()
    assert token == ("token-1", 3600.0)
    assert issuer.forms == [
        {"grant_type": "client_credentials", "resource": "api://x", "client_id": "near hit", "client_secret": SECRET}
    ]
    assert "Authorization" not in issuer.upstream.calls[0].headers


async def test_a_token_without_an_end_has_none(issuer: Issuer) -> None:
    issuer.answer = {"access_token": "t"}
    assert await source_of(issuer).read() == ("t", None)


ANSWERS: dict[str, tuple[int, Any, str]] = {
    "refused": (401, {"error": "invalid_client"}, "it answers with status 401: invalid_client"),
    "an error that is a secret": (400, {"error": f"bad {SECRET}"}, "it answers with status 400$"),
    "a redirect": (307, b"", "it answers with status 307$"),
    "a page": (200, b"<html>", "its answer has no access_token"),
    "a list": (200, b"[]", "its answer has no access_token"),
    "no token": (200, {"token": "x"}, "its answer has no access_token"),
    "a number": (200, {"access_token": 5}, "its answer has no access_token"),
    "two lines": (200, {"access_token": "a\nb"}, "several lines"),
    "another type": (200, {"access_token": "a", "token_type": "DPoP"}, "is of another type"),
    "an end that is none": (200, {"access_token": "a", "expires_in": "soon"}, "expires_in is no number"),
    "a book": (200, b" " * 70_000, "larger than 65536 bytes"),
}


@pytest.mark.parametrize(("status", "answer", "why"), ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_without_a_token_says_why_and_names_the_endpoint(
    issuer: Issuer, status: int, answer: Any, why: str
) -> None:
    issuer.status, issuer.answer = status, answer
    with pytest.raises(NoCredentials, match=why) as raised:
        await source_of(issuer).read()
    assert str(raised.value).startswith(issuer.settings["token_url"])
    assert SECRET not in str(raised.value)
    assert len(issuer.upstream.calls) == 1


async def test_the_words_of_a_refusal_are_for_the_log_and_a_client_gets_none(
    issuer: Issuer, upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.status = 401
    issuer.answer = {"error": "invalid_client", "error_description": f"AADSTS7000215: the secret {SECRET} is wrong"}
    backends = {"main": {"adapter": "openai", "url": upstream.url, "identity": issuer.settings}}
    with caplog.at_level(logging.WARNING):
        async with gateway_of(config_of(tmp_path, backends), NO_CACHE, ENVIRON) as served:
            for _ in range(3):
                answer = await served.chat("hi", headers=CLIENT)
                assert answer.status == 502
    assert "invalid_client" in answer.json["error"]["message"]
    assert "AADSTS" not in answer.body.decode()
    details = [record.__dict__["fields"].get("detail") for record in caplog.records if hasattr(record, "fields")]
    assert "AADSTS7000215: the secret *** is wrong" in details
    assert len(issuer.upstream.calls) == 1  # it is left alone for a moment
    assert not upstream.calls


async def test_an_endpoint_that_is_away_is_named(tmp_path: Path, issuer: Issuer) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/token"
    with pytest.raises(NoCredentials, match=f"{url}: it cannot be reached"):
        await source_of(issuer, token_url=url).read()


async def test_a_secret_in_a_file_is_read_for_each_token(tmp_path: Path, issuer: Issuer) -> None:
    file = tmp_path / "secret"
    settings = {key: value for key, value in issuer.settings.items() if key != "client_secret_env"}
    more = {**settings, "client_secret_file": str(file), "client_auth": "post"}
    source = TokenEndpoint(OAuthIdentity.model_validate(more), None, FakeClock())
    with pytest.raises(NoCredentials, match="client_secret_file: it cannot be read"):
        await source.read()
    for secret in ("one", "two"):
        file.write_text(secret + "\n")
        await source.read()
    assert [form["client_secret"] for form in issuer.forms] == ["one", "two"]


OAUTH = "type: oauth, token_url: https://h/token, client_id: me"
FAULTS = {
    f"{{{OAUTH}}}": "identity: 'client_secret_env' is required, e.g. client_secret_env: NAME, or 'client_secret_file'",
    f"{{{OAUTH}, client_secret_env: NOT_SET}}": "identity.client_secret_env: the environment variable NOT_SET",
    f"{{{OAUTH}, client_secret_file: none}}": "identity.client_secret_file: none: it cannot be read",
    f"{{{OAUTH}, client_secret_env: S, client_secret: s}}": "identity.client_secret: unknown key, did you mean",
    f"{{{OAUTH}, client_secret_env: S, client_auth: jwt}}": "identity.client_auth: expected one of: basic, post",
    "{type: oath}": "identity.type: unknown",
    "{token_url: x}": "identity: 'type' is required, e.g. type: oauth",
    "azure": "identity: expected a mapping such as {type: oauth, ...}, got 'azure'",
    f"{{{OAUTH}, client_secret_env: S}}, api_key_env: S": "identity: cannot stand next to 'api_key_env'",
}


@pytest.mark.parametrize(("identity", "sentence"), FAULTS.items(), ids=FAULTS)
def test_check_tells_each_fault_of_an_identity(tmp_path: Path, identity: str, sentence: str) -> None:
    file = tmp_path / "config.yaml"
    backend = f"{{adapter: openai, url: https://host/v1, identity: {identity}}}"
    file.write_text(f"version: 1\nbackends:\n  main: {backend}\n")
    faults = [f"{'.'.join(map(str, each.path))}: {each.message}" for each in read_config(file, {"S": "s"}).faults]
    assert len(faults) == 1
    assert faults[0].startswith(f"backends.main.{sentence}")
