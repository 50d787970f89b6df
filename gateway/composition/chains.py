"""The stages of a route, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.adapters.batching_embedder import BatchingEmbedder
from gateway.cache.freshness import Lifetime
from gateway.cache.lifetimes import exact_lifetime, longest_lifetime_s
from gateway.composition.dispatching import direct_of, dispatch_of, fetch_of
from gateway.composition.lookup_parts import Looks, looks_of
from gateway.composition.parts import Parts
from gateway.messages import Bypass, Entry, Request
from gateway.pipeline import Stage, compose
from gateway.policy.model import Route, Semantic
from gateway.stages.admit import Admit
from gateway.stages.ahead import EmbedAhead
from gateway.stages.alike import Alike
from gateway.stages.apart import Apart, Together
from gateway.stages.audit import Audit
from gateway.stages.lead import Lead
from gateway.stages.limit import CountRequests, Limit
from gateway.stages.misdirected import Misdirected
from gateway.stages.models import Models
from gateway.stages.policy import Chains
from gateway.stages.record import Record
from gateway.stages.render import Render
from gateway.stages.semantic_lookup import SemanticLookup
from gateway.stages.storing import Storing


def route_chains(route: Route, parts: Parts) -> Chains:
    """The stages of one route. What its policy turns off is not in its chain."""
    clock, telemetry = parts.clock, parts.telemetry
    looks = looks_of(route, parts)
    compares = route.semantic is not None and route.semantic.acceptance.max_wrong_hits is not None
    told, unstorable = _told(route, parts, compares=compares), parts.unstorable
    storing = Storing(parts.store, parts.space.index, clock, telemetry, route, unstorable, told)
    admit = Admit(
        storing,
        clock,
        telemetry,
        route,
        max_entry=parts.max_entry,
        prices=parts.prices,
        unstorable=unstorable,
        frequency=parts.frequency,
    )
    pools = [parts.pools[name] for tier in route.target.tiers for name in tier.members]
    count, limit = _limits(route, parts)
    calls = _calls(route, parts, looks, admit)
    record = [] if route.record is None else [Record(parts.recorder, route)]
    dispatched = dispatch_of(route, parts, None if route.caches else Bypass.POLICY)
    return Chains(
        calls=compose([*record, *count, *calls, *limit], dispatched),
        others=compose([*count, Models(pools), *limit, Misdirected()], dispatch_of(route, parts, Bypass.PASS_THROUGH)),
        direct=direct_of(route, parts),
        beforehand=looks.beforehand,
        fetch=fetch_of(route, parts, admit),
    )


def _calls(route: Route, parts: Parts, looks: Looks, admit: Admit) -> Sequence[Stage]:
    """What calls pass on the way to a backend, but for what counts and limits them."""
    render = Render(route.replay, parts.clock, parts.taken_apart)
    if not route.caches:
        return [render]
    apart, together = Apart(route.share, parts.evictions.used), Together()
    if route.semantic is None or looks.similar is None:
        return [render, apart, looks.exact, looks.coalesce, *_lead(route, parts), admit, together]
    return [
        render,  # outermost: hits, followers and misses alike come out in the form that the client asked for
        apart,  # before anything looks for an answer: each input has its own
        *_ahead(route, parts),  # beside the store's answer to the exact lookup
        looks.exact,  # the cheapest answer first
        *_audit(route.semantic, parts),  # outside of whatever may find a semantic hit, and of `Admit`
        looks.coalesce,  # before anything that costs: a crowd pays for it once
        looks.embed,  # once, for the lookup, the index and the complexity
        looks.similar,  # outside `Admit`: what it answers is never stored again
        *_alike(route.semantic, looks.similar, parts),
        *_lead(route, parts),  # only what nothing stored answers; outside `Admit`, whose put ends the lease
        admit,  # inside the flight, so that who comes after it finds the answer
        together,  # what was taken apart and not found makes one call
    ]


def _limits(route: Route, parts: Parts) -> tuple[Sequence[Stage], Sequence[Stage]]:
    """Outermost what counts hits, innermost what counts calls: so that the caches serve on where a limit is reached."""
    if not route.limits and not parts.keyed:
        return [], []
    counting = parts.keyed or any(rule.count_hits for rule in route.limits)
    counts = [CountRequests(route, parts.quotas, parts.telemetry)] if counting else []
    return counts, [Limit(route, parts.quotas, parts.prices, parts.telemetry)]


def _ahead(route: Route, parts: Parts) -> Sequence[Stage]:
    """Where there is a store to ask, and a thread that embeds meanwhile."""
    embedder = parts.space.embedder
    if route.exact_ttl_s is None or not isinstance(embedder, BatchingEmbedder):
        return []
    return [EmbedAhead(embedder, parts.store)]


def _alike(rule: Semantic, lookup: SemanticLookup, parts: Parts) -> Sequence[Stage]:
    if not rule.coalesce:
        return []
    return [Alike(lookup, parts.space.aloft, parts.unstorable, parts.clock, parts.telemetry)]


def _lead(route: Route, parts: Parts) -> Sequence[Stage]:
    """With an embedded store there is nobody else: a lease would only cost."""
    if parts.leasing is None:
        return []
    lifetime, exact = exact_lifetime(route), route.exact_ttl_s is not None
    return [
        Lead(
            parts.leasing,
            parts.store,
            parts.clock,
            parts.telemetry,
            parts.unstorable,
            lifetime or Lifetime(longest_lifetime_s(route), route.jitter),
            exact=exact,
        )
    ]


def _told(route: Route, parts: Parts, *, compares: bool) -> Callable[[Request, Entry], None]:
    audits = route.target.audit.share > 0

    def told(request: Request, entry: Entry) -> None:
        parts.evictions.stored(entry, None if request.embedding is None else request.embedding.vector)
        if compares:  # a plain threshold has nothing to learn from misses
            parts.space.comparisons.missed(request, entry)
        if audits:
            parts.light_audits.consider(request, entry, route.target, parts.space.comparisons)

    return told


def _audit(rule: Semantic, parts: Parts) -> Sequence[Stage]:
    return [Audit(parts.space.audits, rule.audit)] if rule.audit.share > 0 else []
