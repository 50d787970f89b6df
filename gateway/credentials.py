"""The headers and parameters that identify a client, and what a request shows of them. Pure.

A backend may read a key from any header, so each header that looks like one counts as a part of the tenant. To count
one too many costs hits. To miss one shows a client the answers of another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from fnmatch import translate
from urllib.parse import unquote_plus

ANONYMOUS = "anonymous"
# Headers in which endpoints and gateways accept a key; the headers of this gateway's own dialects come first.
KEYS = (
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "ocp-apim-subscription-key",
    "x-litellm-key",
    "x-litellm-api-key",
    "apikey",
    "x-portkey-api-key",
    "cf-aig-authorization",
    "helicone-auth",
    "x-auth-token",
    "private-token",
    "x-forwarded-authorization",
    "proxy-authorization",
    "sec-websocket-protocol",  # of browsers, which can set no header on a WebSocket: see `_PROTOCOL_KEY`
)
# Signed statements of proxies about a user, which carry no word of `_LIKE_A_KEY`: of Amazon's balancers.
ASSERTIONS = frozenset({"x-amzn-oidc-data", "x-amzn-oidc-accesstoken"})
# Names that end with one of these words look like a key, a token or an assertion.
_LIKE_A_KEY = re.compile(
    r"(?:.*[-_.])?(?:(?:api|access|auth|secret)?key|(?:access|auth|id)?token|auth|authorization|secret|password|passwd"
    r"|credentials?|jwt|assertion)"
)
# They end like a key, and identify no client.
_NO_KEY = re.compile(
    r"sec-websocket-key|.*(?:cache|idempotency|partition|routing|shard|sort|hash|affinity|sticky|dedup\w*|message|request"
    r"|trace|correlation|object|public|encryption)[-_]?key|.*(?:csrf|xsrf|continuation|page|next|cancel\w*|idempotency"
    r"|resume|sync|request)[-_]?token"
)
# Of OpenAI, beside the key. They belong to it, so they count with it.
ACCOUNTS = frozenset({"openai-organization", "openai-project"})
# A user or a client's certificate, as proxies state them without a signature. They count where there is no key.
IDENTITIES = frozenset(
    {
        "cf-access-authenticated-user-email", "remote-user", "ssl-client-cert", "ssl-client-subject-dn",
        "tailscale-user-login", "x-amzn-mtls-clientcert", "x-amzn-mtls-clientcert-leaf", "x-amzn-oidc-identity",
        "x-apigateway-api-userinfo", "x-arr-clientcert", "x-auth-request-email", "x-auth-request-user",
        "x-authenticated-user", "x-authenticated-userid", "x-client-cert", "x-consumer-custom-id", "x-consumer-id",
        "x-consumer-username", "x-credential-identifier", "x-endpoint-api-userinfo", "x-forwarded-client-cert",
        "x-forwarded-email", "x-forwarded-user", "x-goog-authenticated-user-email", "x-goog-authenticated-user-id",
        "x-ms-client-principal", "x-ms-client-principal-id", "x-remote-user", "x-ssl-client-cert", "x-userinfo",
        "x-webauth-user",
    }
)  # fmt: skip
# Cookies that balancers and bot filters set to find a server or a visitor again. They say nothing about a person:
# Amazon, Azure, Google, Cloudflare, nginx, HAProxy, F5, Citrix, Akamai, Imperva.
_BALANCER = re.compile(
    r"AWSALB(?:APP-\d+|CORS|TG|TGCORS)?|AWSELB(?:CORS)?|ARRAffinity(?:SameSite)?|ApplicationGatewayAffinity(?:CORS)?"
    r"|GCLB|GCILB|__cf_bm|__cflb|__cfruid|__cfwaitingroom|_cfuvid|cf_clearance|INGRESSCOOKIE|route|SERVERID|SRVNAME|SRV"
    r"|BIGipServer.*|TS[0-9a-f]{8,}|NSC_.*|citrix_ns_id.*|ak_bmsc|bm_(?:sv|sz|mi)|_abck|incap_ses_.*|visid_incap_.*"
    r"|nlbi_.*|datadome"
)
# Parameters of a query that carry a key: Google's `key`, Azure's `subscription-key` and `api-key`, and common ones.
_QUERY_KEY = re.compile(
    r"key|token|(?:.*[-_.])?(?:api|access|auth|subscription|secret)[-_]?(?:key|token)|client[-_]secret"
)
# What stands before a key among the subprotocols of a WebSocket: for OpenAI, and for Kubernetes.
_PROTOCOL_KEY = re.compile(r"openai-insecure-api-key\.(.+)|base64url\.bearer\.authorization\.\S+?\.([A-Za-z0-9_-]+)")
PROTOCOLS = "sec-websocket-protocol"
# Headers that differ from request to request and normally decide nothing.
TRACING = frozenset({"baggage", "traceparent", "tracestate", "x-request-id", "x-stainless-retry-count"})
LISTED_PARAMETERS = frozenset({"?key"})  # parameters that count as `KEYS` do: of Google
MAX_NAMES = 1024  # remembered names; beyond this number they are forgotten


class Sign(Enum):
    """The kinds of headers that identify a client."""

    KEY = auto()
    ACCOUNT = auto()
    COOKIE = auto()
    IDENTITY = auto()


@dataclass(frozen=True, slots=True)
class Credentials:
    """`Credentials` are all that a request shows of its client.

    `tenant` is a hash of all that counts, because the gateway cannot know which of it the backend uses. `account` is
    the tenant of its first key alone; without a key, it is that of all clients that show nothing. Backends check keys,
    and a client can send any cookie or second header, which must evade no limit. `names` are the headers that count.
    """

    key: str | None
    tenant: str
    account: str
    names: tuple[str, ...]
    rules: CredentialRules

    @property
    def listed_key(self) -> str | None:
        """The key, if it stands in one of `KEYS`, in a header that the configuration names, or in Google's
        parameter."""
        return self.key if self.key is not None and self.rules.is_listed(self.names[0]) else None

    def cover(self, name: str) -> bool:
        """Return whether requests of one tenant agree in this header. `name` is in lower case."""
        sign = self.rules.sign_of(name)
        return sign in (Sign.KEY, Sign.ACCOUNT) or (sign is not None and self.key is None)


class CredentialRules:
    """Tells which headers identify a client. `changes` are names or globs of further headers with keys; one that begins
    with `!` takes a header out. The last one that fits counts."""

    def __init__(self, changes: Sequence[str] = ()) -> None:
        self._changes = [(re.compile(translate(each.lstrip("!").lower())), each[0] != "!") for each in changes]
        further = [each.lower() for each in changes if each[0] != "!" and not set(each) & set("*?[")]
        self._order = {name: rank for rank, name in enumerate(dict.fromkeys((*KEYS, *further)))}
        self._signs: dict[str, Sign | None] = {}

    def is_listed(self, name: str) -> bool:
        """Return whether a header is one of `KEYS`, or the configuration makes it one."""
        return (
            name in self._order
            or name in LISTED_PARAMETERS
            or any(counts and pattern.fullmatch(name) for pattern, counts in self._changes)
        )

    def sign_of(self, name: str) -> Sign | None:
        """Return what a header of this name tells, or None if it tells nothing."""
        try:
            return self._signs[name]
        except KeyError:
            if len(self._signs) >= MAX_NAMES:
                self._signs.clear()
            sign = self._signs[name] = self._find_sign(name.lower())
            return sign

    def _find_sign(self, name: str) -> Sign | None:
        if name in TRACING:  # a known head is found again without them
            return None
        for pattern, counts in reversed(self._changes):
            if pattern.fullmatch(name):
                return Sign.KEY if counts else None
        if name == "cookie":
            return Sign.COOKIE
        if name in ACCOUNTS:
            return Sign.ACCOUNT
        if name in IDENTITIES:
            return Sign.IDENTITY
        if name == PROTOCOLS:
            return None  # `read` looks for a key in it
        looks_like_one = _LIKE_A_KEY.fullmatch(name) and not _NO_KEY.fullmatch(name)
        return Sign.KEY if looks_like_one or name in self._order or name in ASSERTIONS else None

    def is_secret(self, name: str) -> bool:
        """Return whether a header may carry a secret. Such headers are neither logged nor stored in clear, nor sent to
        a backend that has a key of the gateway's own."""
        return self.sign_of(name) in (Sign.KEY, Sign.COOKIE)

    def read(self, headers: Mapping[str, str], query: str = "") -> Credentials:
        """Return what a request shows. A key in the query counts if no header has one: the query itself is a part of
        every cache key."""
        shown = [(sign, name.lower(), value) for name, value in headers.items() if (sign := self.sign_of(name))]
        keys = [
            (name, protocol_key)
            for sign, name, value in shown
            if sign is Sign.KEY and (protocol_key := personal(value) if name == "cookie" else bare(value))
        ]
        if PROTOCOLS in headers:
            keys += [(PROTOCOLS, protocol_key) for protocol_key in keys_in_protocols(headers[PROTOCOLS])]
        if not keys and query:
            keys = [(f"?{name}", value) for name, value in _keys_in_query(query)]
        keys.sort(key=lambda each: (self._order.get(each[0], len(self._order)), each))
        counted = [(name, value) for sign, name, value in shown if sign is Sign.ACCOUNT and value]
        if not keys:
            counted += [(name, value) for sign, name, value in shown if sign is Sign.IDENTITY and value]
            cookies = [(name, personal(value)) for sign, name, value in shown if sign is Sign.COOKIE]
            counted += [each for each in cookies if each[1]]
        if not keys and not counted:
            return Credentials(None, ANONYMOUS, ANONYMOUS, (), self)
        key = keys[0][1] if keys else None
        # No header value can contain a line break, so two different sets of headers never give the same text.
        lines = [f"{name}: {value}" for name, value in (*keys, *sorted(counted))]
        tenant = _hashed(key if key is not None and len(lines) == 1 else "\n".join(lines))
        names = tuple(dict.fromkeys(name for name, _ in (*keys, *counted)))
        return Credentials(key, tenant, ANONYMOUS if key is None else _hashed(key), names, self)

    def without_secrets(self, query: str) -> str:
        """Return a query without the parameters that carry a key."""
        parts = query.split("&")
        rest = [part for part in parts if not _QUERY_KEY.fullmatch(_name_of(part))]
        return query if len(rest) == len(parts) else "&".join(rest)


def _hashed(text: str) -> str:
    return hashlib.sha256(b"tenant/" + text.encode("utf-8", "surrogateescape")).hexdigest()


def bare(value: str) -> str:
    """Return a key without the word Bearer. For any other scheme, return the whole value."""
    scheme, _, key = value.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else value


def personal(cookies: str) -> str:
    """Return a Cookie header without the cookies of balancers, in the order of names."""
    parts = [part.strip() for part in cookies.split(";")]
    return "; ".join(sorted(part for part in parts if part and not _BALANCER.fullmatch(part.partition("=")[0].strip())))


def _keys_in_query(query: str) -> Iterable[tuple[str, str]]:
    """Yield the parameters that carry a key, as lower-case name and value."""
    for part in query.split("&"):
        name, value = _name_of(part), part.partition("=")[2]
        if value and _QUERY_KEY.fullmatch(name):
            yield name, unquote_plus(value)


def _name_of(parameter: str) -> str:
    return unquote_plus(parameter.partition("=")[0]).lower()


def keys_in_protocols(offered: str) -> list[str]:
    """Return the keys among the subprotocols of a WebSocket."""
    matches = [_PROTOCOL_KEY.fullmatch(each.strip()) for each in offered.split(",")]
    return [match[1] or match[2] for match in matches if match is not None]


NO_CHANGES = CredentialRules()
NONE_SHOWN = Credentials(None, ANONYMOUS, ANONYMOUS, (), NO_CHANGES)
