"""What operators may do with the policy of a gateway that runs: see it, try one, put one in force, take it back."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson
from aiohttp import web

from gateway.admin.audit import add_audit_fields
from gateway.admin.middleware import actor_of
from gateway.admin.policy_manager import PolicyManager, file_contents
from gateway.admin.responses import json_response
from gateway.admin.simulation_runner import SimulationRunner
from gateway.admin.stats import Stats
from gateway.config import Config
from gateway.config.errors import ConfigError, ConfigInvalid
from gateway.config.policy.files import validate_name
from gateway.config.policy.history import AUTHOR, COMMENT, MAX_VERSIONS, Author
from gateway.config.policy.model import Policy
from gateway.errors import BadRequest, GatewayError, PayloadTooLarge
from gateway.observability.metrics import LATENCY_BUCKETS
from gateway.observability.telemetry import Telemetry
from gateway.steps.parts import Parts

# Latency budgets that no backend has kept since the gateway started: only one that runs can know.
MIN_ANSWERS = 20  # of each backend: fewer may all have been slow by chance


def unmet_budgets(policy: Policy, telemetry: Telemetry) -> Iterator[ConfigError]:
    """Routes whose `latency_budget` every answer of each of their backends has exceeded."""
    for route in policy.routes:
        budget_s = route.latency_budget_s
        if budget_s is None:
            continue
        members = dict.fromkeys(name for tier in route.target.tiers for name in tier.members)
        if all(_always_exceeds(telemetry, name, budget_s) for name in members):
            message = (
                f"route {route.name!r}: no answer of {', '.join(members)} has come within {budget_s:g} s since the "
                "gateway started, expected a longer latency_budget or a faster backend"
            )
            yield ConfigError(route.file, route.line, (), message)


def _always_exceeds(telemetry: Telemetry, backend: str, budget_s: float) -> bool:
    counts: Sequence[int] = telemetry.backend_seconds.counts.get((backend,), [])
    # The bucket in which the budget lies holds answers on both sides of it: only an empty one says anything.
    return sum(counts) >= MIN_ANSWERS and not any(counts[: bisect_left(LATENCY_BUCKETS, budget_s) + 1])


MAX_AUTHOR, MAX_COMMENT = 128, 512

Handler = Callable[[web.Request], Awaitable[web.Response]]


class PolicyAdmin:
    """`describe`: what the dashboard says of the policy. `live_warnings`: what only a gateway that runs can warn of."""

    def __init__(
        self,
        manager: PolicyManager,
        policy: Callable[[], Policy],
        describe: Callable[[], dict[str, Any]],
        live_warnings: Callable[[], Iterable[ConfigError]],
        simulator: SimulationRunner,
    ) -> None:
        self._simulator = simulator
        self._manager = manager
        self._policy = policy
        self._describe = describe
        self._live_warnings = live_warnings

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/policy", _json_errors(self._get_policy)),
            web.post("/admin/policy", _json_errors(self._apply)),
            web.post("/admin/policy/validate", _json_errors(self._validate)),
            web.post("/admin/simulate", _json_errors(self._simulate)),
            web.get("/admin/policy/history", _json_errors(self._get_history)),
            web.get("/admin/policy/history/{version}", _json_errors(self._get_version)),
            web.post("/admin/policy/rollback", _json_errors(self._roll_back)),
        ]

    async def _get_policy(self, request: web.Request) -> web.Response:
        policy = self._policy()
        files = [{"name": name, "content": content} for name, content in file_contents(policy.texts).items()]
        budgets = [doubt.as_json() for doubt in self._live_warnings()]
        answer = json_response(
            {**self._describe(), "unmet_budgets": budgets, "editable": self._manager.is_editable, "files": files}
        )
        answer.headers["ETag"] = f'"{policy.hash}"'
        return answer

    async def _validate(self, request: web.Request) -> web.Response:
        staged = await self._manager.validate(_file(request), await _body(request))
        return json_response({"ok": True, **staged.as_json()})

    async def _simulate(self, request: web.Request) -> web.Response:
        staged = await self._manager.validate(_file(request), await _body(request))
        return json_response(await self._simulator.of(self._policy(), staged.policy, request.query.get("traffic")))

    async def _apply(self, request: web.Request) -> web.Response:
        author = _author_of(request, "api")
        file = _file(request)
        staged, changed = await self._manager.apply(file, await _body(request), author, _match(request))
        add_audit_fields(request, author=author.name, file=file, hash=staged.policy.hash, applied=changed)
        return json_response({"ok": True, "applied": changed, **staged.as_json()})

    async def _roll_back(self, request: web.Request) -> web.Response:
        key = _key(await _body(request))
        author = _author_of(request, "rollback")
        staged, changed = await self._manager.roll_back(key, author, _match(request))
        add_audit_fields(request, author=author.name, hash=staged.policy.hash, applied=changed)
        return json_response({"ok": True, "applied": changed, **staged.as_json()})

    async def _get_history(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", str(MAX_VERSIONS))
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:6]) <= MAX_VERSIONS:
            raise BadRequest(f"limit: expected a whole number from 1 to {MAX_VERSIONS}")
        return json_response({"hash": self._policy().hash, "versions": self._manager.history.list_versions(int(limit))})

    async def _get_version(self, request: web.Request) -> web.Response:
        version = await asyncio.to_thread(self._manager.version, request.match_info["version"])
        return json_response(version.as_json())


def _author_of(request: web.Request, via: str) -> Author:
    """The header says who it is, unless that is known: then it says on whose behalf."""
    actor, said = actor_of(request), _text_header(request, AUTHOR, MAX_AUTHOR)
    known = actor.by in ("key", "oidc")
    name = f"{said} ({actor.name})" if said and known else said or actor.name
    return Author(name[:MAX_AUTHOR], via, _text_header(request, COMMENT, MAX_COMMENT))


def _text_header(request: web.Request, header: str, max_length: int) -> str:
    value = request.headers.get(header, "").strip()
    if len(value) > max_length or not value.isprintable():
        raise BadRequest(f"the header {header}: expected at most {max_length} printable characters")
    return value


def _file(request: web.Request) -> str | None:
    name = request.query.get("file")
    return None if name is None else validate_name(name)


def _match(request: web.Request) -> str | None:
    """Of `If-Match: "hash"` (RFC 9110 section 13.1.1); `*` is as good as none, since there always is a policy."""
    value = request.headers.get("If-Match", "").strip()
    return None if value in ("", "*") else value.removeprefix("W/").strip('"')


def _key(body: bytes) -> str | None:
    """`{"version": 17}`, `{"hash": "..."}`, or nothing."""
    expected = 'expected {"version": 17}, {"hash": "..."} or no body, which means the version before the last'
    if not body.strip():
        return None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BadRequest(f"the body is not JSON: {expected}") from None
    if not isinstance(value, dict) or value.keys() - {"version", "hash"} or len(value) > 1:
        raise BadRequest(f"the body is something else: {expected}")
    given = next(iter(value.values()), None)
    if given is not None and (isinstance(given, bool) or not isinstance(given, int | str)):
        raise BadRequest(f"the body is something else: {expected}")
    return None if given is None else str(given)


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise PayloadTooLarge("the body is larger than 1 MiB: expected one policy file") from None


def _json_errors(handler: Handler) -> Handler:
    """Refusals as JSON: one sentence, or every fault."""

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


def build_policy_admin(
    config: Config, parts: Parts, manager: PolicyManager, policy: Callable[[], Policy], stats: Stats
) -> PolicyAdmin:
    """`policy` returns the one in force."""
    spaces, telemetry = parts.spaces, parts.telemetry  # the parts themselves would keep a former space in memory
    return PolicyAdmin(
        manager,
        policy,
        lambda: stats.report()["policy"],
        lambda: unmet_budgets(policy(), telemetry),
        SimulationRunner(config, parts.recorder.flush, lambda: spaces.serving.embedder.fingerprint, parts.clock.wall),
    )
