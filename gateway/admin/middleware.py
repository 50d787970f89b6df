"""Access to the admin port: authentication, roles, cross-site protection, and entries of the audit trail."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from gateway.admin.audit import AUDIT_FIELDS, AuditPort
from gateway.admin.responses import Handler, json_response
from gateway.config.key_format import PATTERN
from gateway.config.units import Address
from gateway.errors import Forbidden, GatewayError, TooManyAuthFailures, Unauthorized
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.principal import LOOPBACK, TOKEN, Actor, Role
from gateway.steps.authenticate import AuthThrottle

# The role that each operation requires. An operation that is not in this table is refused to everybody.
USE, OPERATE, ADMIN = Role.USE, Role.OPERATE, Role.ADMIN

ROLES: Mapping[str, Role] = {
    "GET /metrics": OPERATE,
    "GET /admin/whoami": USE,
    "GET /admin/stats": OPERATE,
    "GET /admin/backends": OPERATE,
    "GET /admin/history": OPERATE,
    "GET /admin/decisions": OPERATE,
    "GET /admin/limits": OPERATE,
    "GET /admin/light": OPERATE,
    "POST /admin/light": ADMIN,
    "GET /admin/light/rows": ADMIN,  # every tenant's questions and answers
    "GET /admin/spend": OPERATE,
    "GET /admin/budgets": OPERATE,
    "GET /admin/report": OPERATE,
    "GET /admin/report/alternatives": OPERATE,
    "GET /admin/quality": OPERATE,
    "POST /admin/quality/reset": OPERATE,
    "GET /admin/routing": OPERATE,
    "POST /admin/routing/reset": OPERATE,
    "POST /admin/explain": OPERATE,
    "POST /admin/cache/explain": OPERATE,
    "GET /admin/cache/entries": OPERATE,
    "GET /admin/cache/entries/{fingerprint}": OPERATE,
    "GET /admin/cache/top": OPERATE,
    "POST /admin/cache/purge": OPERATE,
    "GET /admin/cache/export": ADMIN,  # every tenant's questions and answers
    "POST /admin/cache/import": ADMIN,
    "POST /admin/cache/rekey": ADMIN,
    "POST /admin/cache/erase": ADMIN,  # jobs and logs as well as answers
    "GET /admin/jobs": OPERATE,
    "GET /admin/jobs/{job}": OPERATE,
    "POST /admin/jobs/retry": OPERATE,
    "POST /admin/jobs/drop": OPERATE,
    "GET /admin/policy": OPERATE,
    "POST /admin/policy": ADMIN,
    "POST /admin/policy/validate": OPERATE,
    "GET /admin/policy/history": OPERATE,
    "GET /admin/policy/history/{version}": OPERATE,
    "POST /admin/policy/rollback": ADMIN,
    "GET /admin/keys": ADMIN,
    "POST /admin/keys": ADMIN,
    "GET /admin/keys/{key}": ADMIN,
    "POST /admin/keys/{key}": ADMIN,
    "POST /admin/keys/{key}/rotate": ADMIN,
    "POST /admin/keys/{key}/revoke": ADMIN,
    "POST /admin/simulate": OPERATE,
    "GET /admin/audit": ADMIN,
}

# Exceptions to the rule that a POST is audited and a GET is not.
READ_ONLY_POSTS = frozenset(
    {"POST /admin/explain", "POST /admin/cache/explain", "POST /admin/policy/validate", "POST /admin/simulate"}
)

AUDITED_GETS = frozenset({"GET /admin/cache/export", "GET /admin/light/rows"})


def is_audited(endpoint: str) -> bool:
    """Return whether the audit trail records calls of this operation."""
    return endpoint in AUDITED_GETS or not (endpoint.startswith("GET ") or endpoint in READ_ONLY_POSTS)


SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

ACTOR = web.RequestKey("actor", Actor)

Check = Callable[[str], Awaitable[Actor | None]]
"""Return the actor with these credentials. Return None if the check does not know them. Raise `GatewayError`."""


def actor_of(request: web.Request) -> Actor:
    """Return the authenticated actor of a request."""
    return request[ACTOR]


PAGE = "/dashboard"  # its files contain no data


def is_page(path: str) -> bool:
    """Return whether the path belongs to the dashboard, including the redirect to it."""
    return path in ("/", PAGE) or path.startswith(PAGE + "/")


class Authenticator:
    """`Authenticator` finds the actor of a request.

    `token` is the token of the configuration, and `checks` know other credentials. With `allow_anonymous` every client
    that reaches the port may use it. The configuration then requires loopback.
    """

    def __init__(
        self,
        token: str | None,
        checks: Sequence[Check],
        failures: AuthThrottle,
        telemetry: Telemetry,
        *,
        allow_anonymous: bool,
    ) -> None:
        self._token = token
        self._checks = checks
        self._failures = failures
        self._telemetry = telemetry
        self._allow_anonymous = allow_anonymous

    async def authenticate(self, request: web.Request) -> Actor:
        """Return the actor. Raise `Unauthorized`, `TooManyAuthFailures`, or the error of a check."""
        if self._allow_anonymous:
            return LOOPBACK
        credentials, peer = _credentials(request), request.remote or ""
        if not credentials:
            raise Unauthorized("a bearer token is required")
        wait_s = self._failures.wait_s(peer)
        if wait_s is not None:  # before any comparison, so a correct guess is refused, too
            self._telemetry.auth_failures.add("admin", "too-many")
            raise TooManyAuthFailures(retry_after_s=wait_s)
        try:
            return await self._actor_for(credentials)
        except Unauthorized:
            self._failures.failed(peer)
            self._telemetry.auth_failures.add("admin", "refused")
            raise

    async def _actor_for(self, credentials: bytes) -> Actor:
        if self._token is not None and hmac.compare_digest(credentials, self._token.encode()):
            return TOKEN
        text = credentials.decode("utf-8", "replace")
        for check in self._checks:
            actor = await check(text)
            if actor is not None:
                return actor
        raise Unauthorized("these credentials are not known here: expected a bearer token")


class AccessMiddleware:
    """`AccessMiddleware` checks every request to the admin port before its handler runs.

    `address` is the address of the listener. `hosts` are further names that clients may send as Host.
    """

    def __init__(
        self,
        address: Address,
        hosts: Sequence[str],
        authenticator: Authenticator,
        audit: AuditPort,
        clock: Clock,
    ) -> None:
        self._address = address
        self._hosts = frozenset(hosts)
        self._authenticator = authenticator
        self._audit = audit
        self._clock = clock

    @web.middleware
    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check host, credentials, origin and role, in this order. Then call the handler."""
        if not self._is_own_host(request):
            return json_response({"error": "the Host header is not this listener's"}, 403)
        if is_page(request.path) and request.method in SAFE:
            return await handler(request)  # the page contains no data and asks for a token itself
        endpoint = endpoint_of(request)
        try:
            actor = await self._authenticator.authenticate(request)
        except GatewayError as error:
            if isinstance(error, Unauthorized | Forbidden) and _credentials(request):
                trail = await self._audit.opened()
                trail.record(self._entry(request, endpoint, None, error.status))
            return _error_response(error)
        request[ACTOR], request[AUDIT_FIELDS] = actor, {}
        if request.method not in SAFE and _is_cross_site(request):
            return await self._refuse(request, endpoint, actor, "a page of another site sent this")
        role = ROLES.get(endpoint)
        unknown = request.match_info.http_exception
        if unknown is not None:
            return _not_found(request, unknown)
        if role is None or not actor.role.covers(role):
            required_role = "nobody may do this" if role is None else f"this takes the role {role}"
            return await self._refuse(request, endpoint, actor, f"{required_role}, {actor.name} has {actor.role}")
        if not is_audited(endpoint):
            return await handler(request)
        return await self._handle_audited(request, handler, endpoint, actor)

    async def _handle_audited(
        self, request: web.Request, handler: Handler, endpoint: str, actor: Actor
    ) -> web.StreamResponse:
        """Call the handler and record the outcome, also if the connection is cut."""
        status, trail = 0, await self._audit.opened()
        try:
            response = await handler(request)
            status = response.status
        except web.HTTPException as error:
            status = error.status
            raise
        except Exception:
            status = 500
            raise
        finally:
            line = None
            if not request[AUDIT_FIELDS].pop("look", False):
                line = trail.record(self._entry(request, endpoint, actor, status))
        if line is not None:
            await trail.publish(line)
        return response

    async def _refuse(self, request: web.Request, endpoint: str, actor: Actor, sentence: str) -> web.StreamResponse:
        trail = await self._audit.opened()
        await trail.publish(trail.record(self._entry(request, endpoint, actor, 403)))
        return json_response({"error": sentence}, 403)

    def _entry(self, request: web.Request, endpoint: str, actor: Actor | None, status: int) -> dict[str, Any]:
        # A key pasted in place of its id must not reach the audit trail.
        named = {name: PATTERN.sub("nh_...", value) for name, value in request.match_info.items()}
        of = {} if actor is None or not named else {"of": named}
        return {
            "at": round(self._clock.wall(), 3),
            "who": None if actor is None else actor.name,
            "role": None if actor is None else actor.role,
            "by": None if actor is None else actor.by,
            "peer": request.remote or "",
            "did": endpoint,
            **of,
            "status": status or None,
            "outcome": _outcome(status),
            **(request.get(AUDIT_FIELDS) or {}),
        }

    def _is_own_host(self, request: web.Request) -> bool:
        """Return whether the Host header names this listener.

        A page of another site whose name resolves to this machine (DNS rebinding) sends its own name as Host.
        """
        transport = request.transport
        local = transport.get_extra_info("sockname") if transport is not None else None
        if local is None:
            return False
        host, port = local[0], local[1]
        names = {self._address.host, host} | ({"localhost"} if self._address.loopback else set())
        bracketed = {f"[{name}]" if ":" in name else name for name in names}
        if request.host in {f"{name}:{port}" for name in bracketed}:
            return True
        return request.host in self._hosts or request.host.rpartition(":")[0] in self._hosts


def _not_found(request: web.Request, http_error: web.HTTPException) -> web.Response:
    """Return the 404 or 405 as JSON. Name the data port: a client that sends model requests here mixes up the ports."""
    has = f"the admin port has no {request.method[:16]} {request.path[:100]}"
    answer = json_response({"error": f"{has}: clients of models ask the data port (server.listen)"}, http_error.status)
    if "Allow" in http_error.headers:
        answer.headers["Allow"] = http_error.headers["Allow"]
    return answer


def endpoint_of(request: web.Request) -> str:
    """Return method and path as in `ROLES`. An unknown path is not repeated."""
    resource = request.match_info.route.resource
    method = "GET" if request.method == "HEAD" else request.method
    return f"{method[:16]} {'(no such path)' if resource is None else resource.canonical}"


def _outcome(status: int) -> str:
    if status == 0:
        return "cut"
    if status in (401, 403, 429):
        return "refused"
    return "done" if status < 400 else "failed"


def _error_response(error: GatewayError) -> web.Response:
    answer = json_response({"error": error.message}, error.status)
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = 'Basic realm="nearhit admin", charset="UTF-8"'
    if error.retry_after_s is not None:
        answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer


def _is_cross_site(request: web.Request) -> bool:
    """Return whether a page of another site sent the request. Only browsers send `Origin` or `Sec-Fetch-Site`."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.host:
        return True
    return request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")


def _credentials(request: web.Request) -> bytes:
    """Return the bearer token, or the password of Basic authentication (the dialog of a browser). It is
    empty if there is none."""
    header = request.headers.get("Authorization", "")
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "surrogateescape")  # the received bytes, which may not be text
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except ValueError:  # binascii.Error, or not ASCII
            return b""
    return b""
