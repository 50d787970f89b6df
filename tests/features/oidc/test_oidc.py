"""Tokens of an OpenID Connect issuer on the admin port."""

from __future__ import annotations

import base64
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.errors import Overloaded, StartupError
from gateway.features.oidc.check import highest_role
from gateway.features.oidc.jwks import MAX_BYTES, REFRESH_S, RETRY_S, STALE_S, Jwks, JwksFailed
from gateway.principal import Role
from tests.admin.keys import admin, bearer
from tests.features.oidc.issuer import Issuer, issuing
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

ROLES = {"admin": ["platform"], "operate": ["sre", "on-call"]}


@pytest.fixture(autouse=True)
def _the_issuer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in this process; how long it may take is in no configuration."""
    for limit in ("CONNECT_S", "TOTAL_S"):
        monkeypatch.setattr(f"gateway.features.oidc.jwks.{limit}", 60.0)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with issuing() as found:
        yield found


@asynccontextmanager
async def trusting(tmp_path: Path, upstream: Upstream, issuer: Issuer, **more: Any) -> AsyncIterator[Served]:
    oidc = {"issuer": issuer.url, "audience": "nearhit", "roles": ROLES, "private_hosts": ["127.0.0.1"], **more}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, auth={"oidc": oidc})
    async with gateway_of(config, EXACT_CACHE) as served:
        yield served


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path, issuer: Issuer) -> AsyncIterator[Served]:
    async with trusting(tmp_path, upstream, issuer) as gateway:
        yield gateway


async def whoami(served: Served, token: str) -> tuple[int, Any]:
    answer = await admin(served, "GET", "/admin/whoami", headers=bearer(token))
    return answer.status, answer.json


async def test_a_token_opens_the_admin_port_with_the_role_of_its_groups(served: Served, issuer: Issuer) -> None:
    assert (await admin(served, "GET", "/admin/whoami", headers={})).status == 401
    assert await whoami(served, issuer.token()) == (
        200, {"name": "ann", "role": "admin", "by": "oidc", "tenant": None},
    )  # fmt: skip
    assert (await whoami(served, issuer.token(groups=["staff", "on-call"])))[1]["role"] == "operate"
    refused = await admin(served, "GET", "/admin/audit", headers=bearer(issuer.token(groups=["sre"])))
    assert (refused.status, refused.json["error"]) == (403, "this takes the role admin, ann has operate")
    assert issuer.fetched == {"discovery": 1, "jwks": 1}


async def test_who_did_what_is_in_the_trail_and_the_history(served: Served, issuer: Issuer, tmp_path: Path) -> None:
    token = issuer.token()
    await admin(served, "POST", "/admin/cache/purge", {"all": True}, bearer(token))
    assert (await whoami(served, issuer.token(groups=["guests"])))[0] == 403
    written = (tmp_path / "audit.jsonl").read_text()
    purge, refused = map(json.loads, written.splitlines())
    assert (purge["who"], purge["role"], purge["by"], purge["outcome"]) == ("ann", "admin", "oidc", "done")
    assert (refused["who"], refused["outcome"]) == (None, "refused")
    assert token not in written


def with_shared_secret(claims: dict[str, Any], public: Any) -> str:
    """The public key as one, as of CVE-2016-10555; PyJWT itself refuses to make such a token."""
    secret = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (
        {"alg": "HS256", "kid": "one", "typ": "JWT"}, claims,
    )]  # fmt: skip
    signed = b".".join(parts)
    signature = base64.urlsafe_b64encode(hmac.digest(secret, signed, "sha256")).rstrip(b"=")
    return (signed + b"." + signature).decode()


def wrong(issuer: Issuer) -> dict[str, str]:
    now = int(time.time())
    stranger = Issuer()
    stranger.url = issuer.url
    claims = {"iss": issuer.url, "aud": "nearhit", "sub": "ann", "exp": now + 60, "groups": ["platform"]}
    head, body, signature = issuer.token().split(".")
    return {
        "has expired": issuer.token(exp=now - 31),
        "not valid yet": issuer.token(nbf=now + 3600),
        "not valid yet ": issuer.token(iat=now + 3600),
        "for another audience": issuer.token(aud="another"),
        "of another issuer": issuer.token(iss="https://id.example.com"),
        "lacks a claim": issuer.token(exp=None),
        "lacks a claim ": issuer.token(aud=None),
        "does not say who": issuer.token(sub=None),
        "no role here": issuer.token(groups=["guests"]),
        "no role here ": issuer.token(groups=None),
        "signature of the token is wrong": stranger.token(),
        "signature of the token is wrong ": f"{head}.{body}.{'A' * len(signature)}",
        "the issuer has no such key": issuer.token(headers={"kid": "none"}),
        "signed otherwise": jwt.encode(claims, "", algorithm="none"),
        "signed otherwise ": with_shared_secret(claims, issuer.keys["one"][1].public_key()),
        "signed otherwise  ": jwt.encode(claims, issuer.keys["one"][1], algorithm="RS512", headers={"kid": "one"}),
        "not known here": "a.b.c",
    }


class Standing(datetime):
    """The system's clock, as it was when this was read."""

    AT = datetime.now(tz=UTC)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return cls.AT.astimezone(tz)


async def test_why_a_token_is_refused(served: Served, issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for sentence, token in wrong(issuer).items():
            status, said = await whoami(served, token)
            assert status == (403 if "role" in sentence else 401), sentence
            assert sentence.strip() in said["error"], said
            assert token not in caplog.text


async def test_clocks_may_differ_a_little(served: Served, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jwt.api_jwt.datetime", Standing)  # however long it takes until the token is looked at
    now = int(Standing.AT.timestamp())
    for over_s, status in ((20, 200), (31, 401)):
        assert (await whoami(served, issuer.token(iat=now - 60, exp=now - over_s)))[0] == status


async def test_nothing_that_a_token_names_is_fetched_or_believed(served: Served, issuer: Issuer) -> None:
    async with issuing() as other:
        other.url, at = issuer.url, other.url
        key = other.jwks()["keys"][0]
        for headers in ({"jku": f"{at}/keys"}, {"x5u": f"{at}/keys"}, {"jwk": key}, {"kid": f"{at}/keys"}):
            assert (await whoami(served, other.token(headers=headers)))[0] == 401
        assert other.fetched == {"discovery": 0, "jwks": 0}


async def test_a_key_that_cannot_be_read_costs_the_others_nothing(issuer: Issuer) -> None:
    issuer.answer = web.json_response({"keys": [{"kty": "RSA", "n": 3, "kid": "odd"}, 3, *issuer.jwks()["keys"]]})
    keys = Jwks(issuer.url, None, frozenset({"127.0.0.1"}), FakeClock())
    assert await keys.key("one") is not None


async def test_an_issuers_new_key_is_found_and_unknown_names_cost_it_little(
    upstream: Upstream, tmp_path: Path, issuer: Issuer
) -> None:
    clock = FakeClock()
    oidc = {"issuer": issuer.url, "audience": "nearhit", "roles": ROLES, "private_hosts": ["127.0.0.1"]}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, auth={"oidc": oidc})
    async with gateway_of(config, EXACT_CACHE, clock=clock) as served:
        assert (await whoami(served, issuer.token()))[0] == 200
        issuer.rotate("two", "ES256")
        assert (await whoami(served, issuer.token("two")))[0] == 401, "asked a moment ago"
        clock.advance(RETRY_S)
        assert (await whoami(served, issuer.token("two")))[0] == 200
        assert (await whoami(served, issuer.token("one")))[0] == 200
        for i in range(10):
            assert (await whoami(served, issuer.token(headers={"kid": f"none-{i}"})))[0] == 401
        assert issuer.fetched["jwks"] == 2


async def test_a_key_that_is_withdrawn_is_believed_for_ten_minutes(issuer: Issuer) -> None:
    clock = FakeClock()
    keys = Jwks(issuer.url, None, frozenset({"127.0.0.1"}), clock)
    assert await keys.key("one") is not None
    issuer.rotate("two")
    del issuer.keys["one"]
    clock.advance(REFRESH_S)
    assert await keys.key("one") is not None
    clock.advance(1)
    assert await keys.key("one") is None
    assert await keys.key("two") is not None
    assert await keys.key(None) is not None, "the only one"
    issuer.answer = web.Response(status=500)
    clock.advance(STALE_S)
    assert await keys.key("two") is not None, "the issuer is away, and its keys are kept"
    clock.advance(1)
    with pytest.raises(Overloaded):
        await keys.key("two")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (web.Response(status=302, headers={"Location": "http://169.254.169.254/"}), "answers with status 302"),
        (web.Response(body=b"x" * (MAX_BYTES + 1)), "more than 262144 bytes"),
        (web.Response(text="<html>"), "cannot be read: JSONDecodeError"),
        (web.Response(text="[]"), "does not answer with a JSON object"),
        (web.Response(text='{"keys": [{"kty": "oct", "k": "AAAA"}, 3, {}]}'), "no usable key"),
        (web.Response(text='{"keys": [{"kty": "RSA", "n": 3}]}'), "did not contain any usable keys"),
        (web.Response(text="{}"), "did not contain any keys"),
    ],
)
async def test_what_is_no_set_of_keys_is_not_believed(
    issuer: Issuer, answer: web.Response, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.answer = answer
    keys = Jwks(issuer.url, None, frozenset({"127.0.0.1"}), FakeClock())
    with pytest.raises(Overloaded):
        await keys.key("one")
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("discovery", "reason"),
    [
        ({"issuer": "https://another"}, "names another issuer"),
        ({"jwks_uri": "http://169.254.169.254/latest/meta-data"}, "expected https; auth.oidc.private_hosts lists"),
        ({"jwks_uri": None}, "expected a URL"),
        ({"jwks_uri": "https://[::1/keys"}, "expected a URL"),
        ({"jwks_uri": "https://id.example.com:99999/keys"}, "expected a URL"),
    ],
)
async def test_where_a_discovery_document_sends_to_is_checked(
    issuer: Issuer, discovery: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.discovery = discovery
    keys = Jwks(issuer.url, None, frozenset({"127.0.0.1"}), FakeClock())
    with pytest.raises(Overloaded):
        await keys.key("one")
    assert reason in caplog.text
    assert issuer.fetched["jwks"] == 0


def test_an_issuer_is_asked_by_https_unless_it_is_said() -> None:
    with pytest.raises(JwksFailed, match=r"expected https; auth\.oidc\.private_hosts"):
        Jwks("http://id.example.com", None, frozenset(), FakeClock())


async def test_a_gateway_does_not_start_with_an_issuer_that_it_may_not_ask(
    upstream: Upstream, tmp_path: Path, issuer: Issuer
) -> None:
    with pytest.raises(StartupError, match=r"auth\.oidc\.issuer: expected https"):
        async with trusting(tmp_path, upstream, issuer, private_hosts=[]):
            pass


@pytest.mark.parametrize(
    ("value", "role"),
    [
        (["platform", "sre"], Role.ADMIN),
        ("sre", Role.OPERATE),
        ("profile on-call", Role.OPERATE),
        (["platform "], None),
        ([["platform"], 3], None),
        ({"platform": True}, None),
        (None, None),
    ],
)
def test_the_role_of_a_claim(value: object, role: Role | None) -> None:
    assert highest_role(value, ROLES) is role


async def test_a_role_may_lie_within_another_claim(upstream: Upstream, tmp_path: Path, issuer: Issuer) -> None:
    async with trusting(
        tmp_path, upstream, issuer, role_claim="realm_access.roles", name_claim="email", jwks_url=f"{issuer.url}/keys"
    ) as served:
        token = issuer.token(realm_access={"roles": ["sre"]}, email="ann@example.com")
        status, said = await whoami(served, token)
        assert (status, said["name"], said["role"]) == (200, "ann@example.com", "operate")
        assert issuer.fetched == {"discovery": 0, "jwks": 1}
