"""Reads the call, finds its route, and hands it to that route's chain of stages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.backends.direct import Direct
from gateway.cache.directives import parse_directives
from gateway.cache.keys import keys_of, owner_of
from gateway.messages import CacheDirectives, Call, Request, Response
from gateway.pipeline import Handler
from gateway.policy.model import Policy, Route
from gateway.ports import Dialect
from gateway.precedence import Priority
from gateway.routing.budget import UNBOUNDED, Budget, budget_of, priority_of
from gateway.stages.beforehand import Beforehand
from gateway.stages.fetch import Fetch

# A longer body is parsed in another thread, where it holds others up for its longest step instead of for all of them
# together: 10 MiB of turns took 1,030 ms on the loop of a busy machine, and 270 at a time in a thread (orjson keeps the
# interpreter's lock). Up to this the loop is at it for 0.7 ms.
LARGE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Chains:
    """A route's stages for the calls that a dialect understands, and for all else. `direct`: what they come to for
    requests that need none of them; None: there are no such. `beforehand`: what finds the answers to calls that need
    not be waited for; None: some stage is to see each of them. `fetch`: what those that it finds none for come to;
    None: what the stages make of them."""

    calls: Handler
    others: Handler
    direct: Direct | None = None
    beforehand: Beforehand | None = None
    fetch: Fetch | None = None


@dataclass(frozen=True, slots=True)
class RouteTable:
    """A policy with a chain of stages for each route, swapped as one."""

    policy: Policy
    chains: Mapping[str, Chains]


class ApplyPolicy:
    """`table` returns the one in force; a request keeps to the one it met, whatever is swapped meanwhile."""

    def __init__(self, table: Callable[[], RouteTable], dialects: Sequence[Dialect]) -> None:
        self._table = table
        self._dialects = dialects

    async def __call__(self, request: Request, forward: Handler) -> Response:
        trace = request.trace
        table: RouteTable = request.table or self._table()
        if request.call is not None:  # it was read, routed and looked up beforehand
            return await table.chains[request.route].calls(request)
        body, call = b"", None
        for dialect in self._dialects:
            if dialect.claims(request.method, request.path):
                trace.dialect = dialect
                body = await request.source.read()
                if len(body) <= LARGE:
                    call = dialect.parse(request.path, body, request.headers)
                else:
                    call = await asyncio.to_thread(dialect.parse, request.path, body, request.headers)
                break
        if call is not None and trace.traced is not None:
            trace.traced.operation, trace.traced.model = call.operation, call.model
        if trace.permit is not None:  # before anything is looked up: what a tenant has stored is not every key's of it
            trace.permit.check_model(None if call is None else call.model, request.method, request.path)
        route = table.policy.match(request.path, call.model if call else "", trace.tenant, request.headers)
        trace.route = route.name
        trace.expose_headers = route.expose_headers
        chains = table.chains[route.name]
        return await (chains.others if call is None else chains.calls)(routed(request, body, call, route))


@dataclass(frozen=True, slots=True)
class Terms:
    """What a route and the head of a request come to."""

    route: Route
    caching: bool
    budget: Budget
    directives: CacheDirectives
    priority: Priority


def terms_of(headers: Mapping[str, str], route: Route, *, patient: bool) -> Terms:
    """Raises `BadRequest` on budgets and priorities that are none."""
    # What nobody waits for goes after all that somebody does.
    priority = Priority.LOW if patient else priority_of(headers, route.priority, raised=route.client_priority)
    return Terms(
        route,
        route.exact_ttl_s is not None or route.semantic is not None,
        UNBOUNDED if patient else budget_of(headers, route.latency_budget_s),
        parse_directives(headers.get("cache-control")),
        priority,
    )


def routed(request: Request, body: bytes, call: Call | None, route: Route) -> Request:
    """The request with all that its route decides. Raises `BadRequest` on budgets and priorities that are none."""
    patient = request.patient
    terms = terms_of(request.headers, route, patient=patient)
    budget, directives = terms.budget, terms.directives
    if patient and call is not None and call.stream:
        call = replace(call, stream=False)  # nobody watches it come: it is collected, and a broken one is an error
    scope = fingerprint = ""
    if terms.caching and call is not None and call.uncached is None and not directives.no_store:
        owner = owner_of(route.share, request.trace.tenant, call.user)
        scope, fingerprint = keys_of(owner, route.name, call)
    deadline, ttft_deadline = budget.due(request.received)
    return Request(  # not `replace`, which takes three times as long: every request comes by here
        id=request.id,
        method=request.method,
        path=request.path,
        query=request.query,
        headers=request.headers,
        source=request.source,
        received=request.received,
        trace=request.trace,
        body=body,
        call=call,
        route=route.name,
        directives=directives,
        scope=scope,
        fingerprint=fingerprint,
        deadline=deadline,
        ttft_deadline=ttft_deadline,
        tpot_s=budget.tpot_s,
        priority=terms.priority,
        patient=patient,
        peer=request.peer,
        begun=request.begun,
    )
