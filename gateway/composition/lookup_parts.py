"""Builds what looks for stored answers to the calls of a route."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.cache.freshness import Lifetime
from gateway.cache.lifetimes import exact_lifetime
from gateway.composition.parts import Parts
from gateway.policy.model import Route, Semantic
from gateway.stages.beforehand import Beforehand
from gateway.stages.coalesce import Coalesce
from gateway.stages.embed import Embed
from gateway.stages.exact_lookup import ExactLookup
from gateway.stages.from_memory import FromMemory
from gateway.stages.semantic_lookup import SemanticLookup, floor_of
from gateway.stages.similar import Similar


@dataclass(frozen=True, slots=True)
class Looks:
    """`similar` None: the route has its semantic cache off. `beforehand` None: some stage is to see each of its
    calls."""

    exact: ExactLookup
    embed: Embed
    similar: SemanticLookup | None
    coalesce: Coalesce
    beforehand: Beforehand | None


def looks_of(route: Route, parts: Parts) -> Looks:
    clock, telemetry = parts.clock, parts.telemetry
    exact = ExactLookup(parts.store, parts.evictions.lacks, clock, telemetry, exact_lifetime(route), parts.background)
    similar = at_once = None
    if route.semantic is not None:
        # Nothing stale by similarity: one doubt at a time.
        lifetime = Lifetime(route.semantic.ttl_s, route.jitter)
        similar = _similar(route.semantic, lifetime, parts)
        at_once = _at_once(route.name, route.semantic, lifetime, parts)
    coalesce = Coalesce(FromMemory(exact, at_once, clock), parts.flights, parts.unstorable, telemetry)
    beforehand = Beforehand(exact, at_once, coalesce.alone, clock) if _unwatched(route) else None
    return Looks(exact, Embed(parts.space.embedder), similar, coalesce, beforehand)


def _unwatched(route: Route) -> bool:
    """Whether no stage but the lookups themselves has anything to do with a hit."""
    audited = route.semantic is not None and route.semantic.audit.share > 0
    counted = any(rule.count_hits for rule in route.limits)
    replayed = route.replay.fresh_ids or route.replay.paced
    return route.caches and route.record is None and not (audited or counted or replayed)


def _similar(rule: Semantic, lifetime: Lifetime, parts: Parts) -> SemanticLookup:
    space = parts.space
    return SemanticLookup(
        space.index,
        parts.store,
        space.embedder,
        space.verifier,
        space.controls,
        parts.clock,
        parts.telemetry,
        rule,
        lifetime,
        parts.memory,
    )


def _at_once(route: str, rule: Semantic, lifetime: Lifetime, parts: Parts) -> Similar:
    space = parts.space
    return Similar(
        route,
        space.embedder,
        space.index,
        parts.store,
        space.controls,
        parts.memory,
        parts.clock,
        parts.telemetry,
        rule,
        lifetime,
        floor_of(rule, space.verifier),
    )
