"""What a request takes of the limits that hold for it, and for whom it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.context import RequestContext
from gateway.credentials import key_of
from gateway.errors import LimitReached
from gateway.limits import Limits, Per
from gateway.observability.telemetry import Telemetry
from gateway.routing.limit_evaluation import LONG_S, Asked, headers_of, refused, subjects
from gateway.routing.rate_limiter import Grant, Quotas


def whose(request: RequestContext) -> Mapping[Per, str]:
    permit = request.permit
    # A key has one id before and after a rotation.
    key = permit.id if permit is not None and permit.id else key_of(request.headers)
    return subjects(request.tenant, None if request.call is None else request.call.user, key)


def own_of(request: RequestContext) -> tuple[tuple[Limits, ...], Mapping[Per, str]]:
    """The limits of its API key, and whom they count for."""
    permit = request.permit
    return ((), {}) if permit is None or request.internal else (permit.limits, {"key": permit.id})


def asker_of(request: RequestContext) -> str:
    """For whom a limit was reached: another asker may have more left."""
    return "\n".join(whose(request).values())


async def take_limits(
    request: RequestContext, route: str, asked: Sequence[Asked], quotas: Quotas, telemetry: Telemetry
) -> Grant:
    """Raises `LimitReached`."""
    with request.timed("limits"):
        grant = await quotas.take([a.demand for a in asked])
    if grant.local:
        telemetry.limits_local.add(route)
    quotas.note(route, asked, grant.taken)
    if grant.taken.granted:
        return grant
    limit, sentence, seconds = refused(route, asked, grant.taken)
    telemetry.limited.add(route, limit.limit)
    headers = headers_of(asked, grant.taken)
    if seconds > LONG_S:
        headers += (("x-should-retry", "false"),)  # OpenAI's clients heed it
    raise LimitReached(sentence, retry_after_s=seconds, asker=asker_of(request), headers=headers)
