"""Who asks is told by all that a client shows."""

from __future__ import annotations

from itertools import combinations

import pytest
from multidict import CIMultiDict

from gateway.config.auth import AuthConfig
from gateway.credentials import ACCOUNTS, ANONYMOUS, IDENTITIES, KEYS, NO_CHANGES, PROTOCOLS, CredentialRules, Sign

# Headers of gateways, of their clients, and of proxies, with a key or a signed statement.
LIKE_KEYS = (
    "x-litellm-key", "apikey", "x-portkey-api-key", "cf-aig-authorization", "x-forwarded-authorization",
    "x-goog-api-key", "ocp-apim-subscription-key", "api-key", "x-api-key", "x-auth-token", "private-token",
    "x-amzn-oidc-data", "x-amzn-oidc-accesstoken", "x-goog-iap-jwt-assertion", "cf-access-jwt-assertion",
    "x-serverless-authorization", "x-original-authorization", "x-functions-key", "x-virtual-key", "helicone-auth",
    "x-api-token", "job-token", "x-access-token", "x-forwarded-access-token", "x-amz-security-token", "x-vault-token",
    "x-id-token", "cf-access-client-secret", "x-pomerium-jwt-assertion", "x-openai-key", "x_api_key", "x-session-token",
    "x-ms-token-aad-access-token", "x-endpoint-jwt", "x-auth", "x-user-password", "accesskey", "authtoken",
)  # fmt: skip
NO_KEYS = (
    "user-agent", "accept", "content-type", "idempotency-key", "x-idempotency-key", "sec-websocket-key", "x-csrf-token",
    "x-xsrf-token", "x-cache-key", "cache-tag", "x-request-id", "traceparent", "x-max-tokens", "x-ratelimit-tokens",
    "mcp-session-id", "anthropic-beta", "anthropic-version", "openai-beta", "x-slo-ttft-ms", "x-monkey", "authority",
    "x-author", "if-none-match", "x-page-token", "prompt-cache-key", "x-routing-key", "x-stainless-os", "baggage",
)  # fmt: skip
KEYED = tuple(name for name in KEYS if name != PROTOCOLS)


def tenant_of(headers: CIMultiDict[str] | dict[str, str], query: str = "") -> str:
    return NO_CHANGES.read(CIMultiDict(headers), query).tenant


def test_who_shows_nothing_is_anonymous() -> None:
    for headers in ({}, {"User-Agent": "x"}, {"Authorization": ""}, {"Authorization": "Bearer "}, {"Cookie": " ; "}):
        shown = NO_CHANGES.read(CIMultiDict(headers))
        assert (shown.tenant, shown.account, shown.key, shown.names) == (ANONYMOUS, ANONYMOUS, None, ())


@pytest.mark.parametrize("name", LIKE_KEYS)
def test_what_looks_like_a_key_counts_as_one(name: str) -> None:
    assert NO_CHANGES.sign_of(name) is NO_CHANGES.sign_of(name.title()) is Sign.KEY
    assert NO_CHANGES.is_secret(name)


@pytest.mark.parametrize("name", NO_KEYS)
def test_what_looks_like_no_key_does_not_count(name: str) -> None:
    assert NO_CHANGES.sign_of(name) is None
    assert tenant_of({name: "x"}) == ANONYMOUS


@pytest.mark.parametrize("name", sorted({*KEYED, *ACCOUNTS, *IDENTITIES, *LIKE_KEYS, "cookie"}))
def test_every_identifying_header_tells_clients_apart(name: str) -> None:
    tenants = {tenant_of({name.title(): value}) for value in ("one", "two")}
    assert len(tenants | {ANONYMOUS}) == 3


@pytest.mark.parametrize(("one", "other"), list(combinations(sorted({*KEYED, *ACCOUNTS}), 2)))
def test_a_second_key_or_account_makes_another_tenant(one: str, other: str) -> None:
    assert tenant_of({one: "a"}) != tenant_of({one: "a", other: "b"})
    assert tenant_of({one: "a", other: "b"}) == tenant_of({other: "b", one: "a"}), "in any order"


@pytest.mark.parametrize("name", sorted({*KEYED, *LIKE_KEYS}))
def test_a_lone_key_counts_the_same_in_whichever_header_it_comes(name: str) -> None:
    bearer = tenant_of({"Authorization": "Bearer sk-1"})
    for value in ("sk-1", "Bearer sk-1", "bearer  sk-1"):
        assert tenant_of({name: value}) == bearer
        assert NO_CHANGES.read(CIMultiDict({name: value})).key == "sk-1"
    assert tenant_of({}, "key=sk-1") == tenant_of({PROTOCOLS: "realtime, openai-insecure-api-key.sk-1"}) == bearer


def test_a_header_that_comes_twice_is_not_the_one_that_comes_once() -> None:
    once = CIMultiDict([("Authorization", "Bearer a")])
    twice = CIMultiDict([("Authorization", "Bearer a"), ("Authorization", "Bearer b")])
    assert tenant_of(once) != tenant_of(twice)


@pytest.mark.parametrize("name", [*sorted(IDENTITIES), "cookie"])
def test_cookies_and_unsigned_users_count_only_where_there_is_no_key(name: str) -> None:
    lone = tenant_of({"Authorization": "Bearer a"})
    assert tenant_of({"Authorization": "Bearer a", name: "x"}) == lone
    shown = NO_CHANGES.read(CIMultiDict({"x-litellm-key": "a", name: "x"}))
    assert shown.tenant == lone
    assert not shown.cover(name), "an answer that varies by it is not for the whole tenant"
    assert NO_CHANGES.read(CIMultiDict({name: "x"})).cover(name)


@pytest.mark.parametrize(
    "cookie",
    [
        "AWSALB", "AWSALBCORS", "AWSALBTG", "AWSALBTGCORS", "AWSALBAPP-0", "AWSELB", "__cf_bm", "cf_clearance",
        "__cflb", "_cfuvid", "INGRESSCOOKIE", "ARRAffinity", "ARRAffinitySameSite", "ApplicationGatewayAffinity",
        "GCLB", "SERVERID", "route", "BIGipServerpool_x", "TS01a2b3c4", "NSC_abc", "ak_bmsc", "incap_ses_1_2",
    ],
)  # fmt: skip
def test_the_cookies_of_balancers_never_count(cookie: str) -> None:
    assert tenant_of({"Cookie": f"{cookie}=r1"}) == ANONYMOUS
    assert tenant_of({"Cookie": f"{cookie}=r1; session=s"}) == tenant_of({"Cookie": f"session=s; {cookie}=r2"})
    assert tenant_of({"Cookie": "session=s"}) == tenant_of({"Cookie": f"session=s;{cookie}=r2;"}) != ANONYMOUS


@pytest.mark.parametrize("cookie", ["JSESSIONID", "PHPSESSID", "session", "ASP.NET_SessionId", "sid", "router", "ID"])
def test_the_cookies_of_persons_count(cookie: str) -> None:
    assert len({tenant_of({"Cookie": f"{cookie}={value}"}) for value in "ab"} | {ANONYMOUS}) == 3


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("key=k", ""),
        ("a=1&api_key=k&b=2", "a=1&b=2"),
        ("api-key=k&api-version=2024", "api-version=2024"),
        ("a=1&access_token=k", "a=1"),
        ("subscription-key=k", ""),
        ("%6Bey=k&a=%20", "a=%20"),
        ("API_KEY=k", ""),
    ],
)
def test_a_key_in_the_query_counts_and_can_be_left_out(query: str, kept: str) -> None:
    assert NO_CHANGES.read(CIMultiDict(), query).key == "k"
    assert NO_CHANGES.without_secrets(query) == kept
    lone = tenant_of({"Authorization": "a"})
    assert tenant_of({"Authorization": "a"}, query) == lone, "the query is a part of every cache key already"


@pytest.mark.parametrize("query", ["", "a=1&b", "page_token=x", "sort_key=x", "monkey=x", "q=key=x", "pageToken=x&&"])
def test_a_query_without_a_key_stays_as_it_is(query: str) -> None:
    assert tenant_of({}, query) == ANONYMOUS
    assert NO_CHANGES.without_secrets(query) == query


def test_a_header_beside_the_key_makes_no_other_account() -> None:
    alone = NO_CHANGES.read(CIMultiDict({"Authorization": "Bearer a"}))
    beside = NO_CHANGES.read(CIMultiDict({"Authorization": "Bearer a", "X-Foo-Token": "t", "OpenAI-Project": "p"}))
    assert beside.tenant != alone.tenant
    assert beside.account == alone.account == alone.tenant
    assert beside.names == ("authorization", "x-foo-token", "openai-project")


def test_the_configuration_adds_and_takes_out_headers() -> None:
    rules = CredentialRules(["X-Team", "x-corp-*", "!x-corp-trace", "!*-nonce-token", "!x-request-id", "x-request-*"])
    for name, sign in (
        ("x-team", Sign.KEY),
        ("X-Corp-Login", Sign.KEY),
        ("x-corp-trace", None),
        ("x-nonce-token", None),
        ("x-request-id", None),  # it may be another one in each request
        ("x-request-login", Sign.KEY),
        ("authorization", Sign.KEY),
        ("x-team-x", None),
    ):
        assert rules.sign_of(name) is sign, name
    shown = rules.read(CIMultiDict({"X-Team": "k", "X-Nonce-Token": "1"}))
    assert (shown.key, shown.listed_key, shown.names) == ("k", "k", ("x-team",))
    assert rules.read(CIMultiDict({"X-Corp-Login": "k"})).listed_key == "k"


def test_a_header_that_only_looks_like_a_key_is_no_key_of_the_gateway() -> None:
    """Proxies add such headers to every request: it would count as a guess."""
    shown = NO_CHANGES.read(CIMultiDict({"X-Goog-Iap-Jwt-Assertion": "j"}))
    assert (shown.key, shown.listed_key) == ("j", None)
    assert NO_CHANGES.read(CIMultiDict({"X-Goog-Iap-Jwt-Assertion": "j", "X-Litellm-Key": "k"})).listed_key == "k"


@pytest.mark.parametrize("entry", ["x key", "", "*", "!", "x-request-id", "!Content-Type", "!*"])
def test_an_entry_that_cannot_tell_clients_apart_is_a_fault(entry: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        AuthConfig.model_validate({"credential_headers": [entry]})
