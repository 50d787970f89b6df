"""Admin operations on the policy: show, validate, apply, history and rollback."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from aiohttp import web
from pydantic import Field

from gateway.admin.audit import add_audit_fields
from gateway.admin.middleware import actor_of
from gateway.admin.operations import TypedDict, operation
from gateway.admin.policy_manager import file_contents
from gateway.admin.responses import Error, json_response
from gateway.admin.stats import PolicySummary
from gateway.config.errors import ConfigError, ConfigInvalid
from gateway.config.policy.files import validate_name
from gateway.config.policy.history import AUTHOR, COMMENT, MAX_VERSIONS, Author
from gateway.config.policy.model import Policy
from gateway.config.policy.parameters import untuned
from gateway.config.policy.schema import PolicyFile
from gateway.errors import BadRequest, GatewayError, PayloadTooLarge
from gateway.observability.metrics import LATENCY_BUCKETS
from gateway.observability.telemetry import Telemetry

if TYPE_CHECKING:
    from gateway.admin.on_demand import AdminCore

# Latency budgets that no backend has met since the gateway started. Only a running gateway knows them.
MIN_ANSWERS = 20  # answers of each backend; fewer may all be slow by chance


def unmet_budgets(policy: Policy, telemetry: Telemetry) -> Iterator[ConfigError]:
    """Yield a warning for each route whose `latency_budget` every answer of each of its backends has exceeded."""
    for route in policy.routes:
        budget_s = route.latency_budget_s
        if budget_s is None:
            continue
        members = dict.fromkeys(untuned(name) for tier in route.target.tiers for name in tier.members)
        if all(_always_exceeds(telemetry, name, budget_s) for name in members):
            message = (
                f"route {route.name!r}: no answer of {', '.join(members)} has come within {budget_s:g} s since the "
                "gateway started, expected a longer latency_budget or a faster backend"
            )
            yield ConfigError(route.file, route.line, (), message)


def _always_exceeds(telemetry: Telemetry, backend: str, budget_s: float) -> bool:
    counts: Sequence[int] = telemetry.backend_seconds.counts.get((backend,), [])
    # The bucket of the budget has answers on both sides of the budget, so it must be empty, too.
    return sum(counts) >= MIN_ANSWERS and not any(counts[: bisect_left(LATENCY_BUCKETS, budget_s) + 1])


MAX_AUTHOR, MAX_COMMENT = 128, 512

Handler = Callable[[web.Request], Awaitable[web.Response]]


class FileQuery(TypedDict, total=False):
    file: str
    """The name of the policy file that the body replaces. Default: `default.yaml`."""


# The first two are `AUTHOR` and `COMMENT`.
ChangeHeaders = TypedDict(
    "ChangeHeaders",
    {
        "x-nearhit-author": Annotated[str, Field(max_length=MAX_AUTHOR, description="The author, for the history.")],
        "x-nearhit-comment": Annotated[str, Field(max_length=MAX_COMMENT, description="A comment, for the history.")],
        "If-Match": Annotated[str, Field(description="The hash of the policy that the change is based on, in quotes.")],
    },
    total=False,
)


class PolicyFault(TypedDict):
    file: str
    line: int
    path: str
    """The path of the key, such as `routes[0].cache`."""
    message: str


class PolicyError(Error):
    ok: Literal[False]


class PolicyFaults(PolicyError):
    faults: list[PolicyFault]
    """Every fault of the policy."""


class PolicyText(TypedDict):
    name: str
    content: str


class PolicyReport(PolicySummary):
    unmet_budgets: list[PolicyFault]
    """Routes whose latency budget no answer has met since the gateway started."""
    editable: bool
    """False: the policy has no files and cannot be changed."""
    files: list[PolicyText]


class StagedReport(TypedDict):
    ok: Literal[True]
    hash: str
    """The hash of the policy."""
    previous: str
    """The hash of the policy that was in force."""
    routes: list[str]
    warnings: list[PolicyFault]
    diff: str
    """The difference between both, as a unified diff."""


class AppliedReport(StagedReport):
    applied: bool
    """False: the policy was in force already."""


class VersionFields(TypedDict):
    version: int
    at: float
    """Seconds since 1970."""
    hash: str
    author: str
    via: str
    """The way of the change: `file`, `api`, `rollback` or `fleet`."""
    comment: str
    added: int
    """The number of lines."""
    removed: int


class VersionSummary(VersionFields):
    files: list[str]


class VersionReport(VersionFields):
    files: dict[str, str]
    """Contents by name."""
    diff: str


class PolicyHistoryQuery(TypedDict, total=False):
    limit: Annotated[int, Field(ge=1, le=MAX_VERSIONS, default=MAX_VERSIONS)]


class PolicyHistory(TypedDict):
    hash: str
    """The hash of the policy in force."""
    versions: list[VersionSummary]
    """The newest first."""


class ByVersion(TypedDict):
    version: int


class ByHash(TypedDict):
    hash: str


ERRORS: dict[str, Any] = {"error": PolicyError, "errors": {422: PolicyFaults}}
YAML: dict[str, Any] = {"body": PolicyFile, "body_type": "application/yaml", **ERRORS}


class PolicyAdmin:
    """`PolicyAdmin` serves `/admin/policy`."""

    def __init__(self, core: AdminCore) -> None:
        self.manager = core.policies
        self.policy = core.policy
        self._core = core

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/policy", policy_errors(self._get_policy)),
            web.post("/admin/policy", policy_errors(self._apply)),
            web.post("/admin/policy/validate", policy_errors(self._validate)),
            web.get("/admin/policy/history", policy_errors(self._get_history)),
            web.get("/admin/policy/history/{version}", policy_errors(self._get_version)),
            web.post("/admin/policy/rollback", policy_errors(self._roll_back)),
        ]

    @operation(PolicyReport, etag=True, error=PolicyError)
    async def _get_policy(self, request: web.Request) -> web.Response:
        """Show the policy in force with its files. The `ETag` is its hash."""
        policy = self.policy()
        files = [{"name": name, "content": content} for name, content in file_contents(policy.texts).items()]
        budgets = [doubt.as_json() for doubt in unmet_budgets(policy, self._core.parts().telemetry)]
        answer = json_response(
            {
                **self._core.stats.report()["policy"],
                "unmet_budgets": budgets,
                "editable": self.manager.is_editable,
                "files": files,
            }
        )
        answer.headers["ETag"] = f'"{policy.hash}"'
        return answer

    @operation(StagedReport, query=FileQuery, **YAML)
    async def _validate(self, request: web.Request) -> web.Response:
        """Check a policy file together with the others. Nothing changes."""
        staged = await self.manager.validate(file_of(request), await body_of(request))
        return json_response({"ok": True, **staged.as_json()})

    @operation(AppliedReport, query=FileQuery, headers=ChangeHeaders, **YAML)
    async def _apply(self, request: web.Request) -> web.Response:
        """Write a policy file and put the policy in force at all gateways on the store.

        With `If-Match`, the response has status 412 if another policy is in force.
        """
        author = _author_of(request, "api")
        file = file_of(request)
        staged, changed = await self.manager.apply(file, await body_of(request), author, _match(request))
        add_audit_fields(request, author=author.name, file=file, hash=staged.policy.hash, applied=changed)
        return json_response({"ok": True, "applied": changed, **staged.as_json()})

    @operation(AppliedReport, headers=ChangeHeaders, body=ByVersion | ByHash, body_required=False, **ERRORS)
    async def _roll_back(self, request: web.Request) -> web.Response:
        """Put the files of an earlier version in force, as a new version. Default: the one before the current one."""
        key = _key(await body_of(request))
        author = _author_of(request, "rollback")
        staged, changed = await self.manager.roll_back(key, author, _match(request))
        add_audit_fields(request, author=author.name, hash=staged.policy.hash, applied=changed)
        return json_response({"ok": True, "applied": changed, **staged.as_json()})

    @operation(PolicyHistory, query=PolicyHistoryQuery, error=PolicyError)
    async def _get_history(self, request: web.Request) -> web.Response:
        """List the versions of the policy, the newest first."""
        limit = request.query.get("limit", str(MAX_VERSIONS))
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:6]) <= MAX_VERSIONS:
            raise BadRequest(f"limit: expected a whole number from 1 to {MAX_VERSIONS}")
        return json_response({"hash": self.policy().hash, "versions": self.manager.history.list_versions(int(limit))})

    @operation(VersionReport, error=PolicyError)
    async def _get_version(self, request: web.Request) -> web.Response:
        """Show one version with its files and its diff. `version` is a number, or a hash of at least four digits."""
        version = await asyncio.to_thread(self.manager.version, request.match_info["version"])
        return json_response(version.as_json())


def _author_of(request: web.Request, via: str) -> Author:
    """Return the author by the header. If the actor is known by name, the name follows in parentheses."""
    actor, stated = actor_of(request), _text_header(request, AUTHOR, MAX_AUTHOR)
    has_name = actor.by in ("key", "oidc")
    name = f"{stated} ({actor.name})" if stated and has_name else stated or actor.name
    return Author(name[:MAX_AUTHOR], via, _text_header(request, COMMENT, MAX_COMMENT))


def _text_header(request: web.Request, header: str, max_length: int) -> str:
    value = request.headers.get(header, "").strip()
    if len(value) > max_length or not value.isprintable():
        raise BadRequest(f"the header {header}: expected at most {max_length} printable characters")
    return value


def file_of(request: web.Request) -> str | None:
    name = request.query.get("file")
    return None if name is None else validate_name(name)


def _match(request: web.Request) -> str | None:
    """Return the hash of `If-Match: "hash"` (RFC 9110 section 13.1.1). Return None without the header, or for `*`."""
    value = request.headers.get("If-Match", "").strip()
    return None if value in ("", "*") else value.removeprefix("W/").strip('"')


def _key(body: bytes) -> str | None:
    """Return the version of `{"version": 17}` or `{"hash": "..."}`. Return None if the body is empty."""
    expected = 'expected {"version": 17}, {"hash": "..."} or no body, which means the version before the last'
    if not body.strip():
        return None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BadRequest(f"the body is not JSON: {expected}") from None
    if not isinstance(value, dict) or value.keys() - {"version", "hash"} or len(value) > 1:
        raise BadRequest(f"the body is something else: {expected}")
    version = next(iter(value.values()), None)
    if version is not None and (isinstance(version, bool) or not isinstance(version, int | str)):
        raise BadRequest(f"the body is something else: {expected}")
    return None if version is None else str(version)


async def body_of(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise PayloadTooLarge("the body is larger than 1 MiB: expected one policy file") from None


def policy_errors(handler: Handler) -> Handler:
    """Return a handler that answers errors as JSON: one sentence, or every fault."""

    @wraps(handler)
    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except ConfigInvalid as invalid:
            faults = [fault.as_json() for fault in invalid.faults]
            count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
            return json_response({"ok": False, "error": f"the policy has {count}", "faults": faults}, 422)
        except GatewayError as error:
            return json_response({"ok": False, "error": error.message}, error.status)

    return answer
