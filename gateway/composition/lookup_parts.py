"""Builds what looks for stored answers to the calls of a route: half a page of the composition root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.cache.lifetimes import exact_lifetime
from gateway.policy.model import Route, Semantic
from gateway.stages.beforehand import Beforehand
from gateway.stages.coalesce import Coalesce
from gateway.stages.embed import Embed
from gateway.stages.exact_lookup import ExactLookup
from gateway.stages.from_memory import FromMemory
from gateway.stages.semantic_lookup import SemanticLookup

if TYPE_CHECKING:
    from gateway.composition.chains import Parts


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
    embed = Embed(parts.space.embedder, clock)
    similar = None if route.semantic is None else _similar(route, route.semantic, parts)
    from_memory = FromMemory(exact, None if similar is None else embed, similar)
    coalesce = Coalesce(from_memory, parts.flights, parts.unstorable, telemetry)
    beforehand = Beforehand(exact, from_memory, coalesce.alone) if _unwatched(route) else None
    return Looks(exact, embed, similar, coalesce, beforehand)


def _unwatched(route: Route) -> bool:
    """Whether no stage but the lookups themselves has anything to do with a hit."""
    caching = route.exact_ttl_s is not None or route.semantic is not None
    audited = route.semantic is not None and route.semantic.audit.share > 0
    counted = any(rule.count_hits for rule in route.limits)
    replayed = route.replay.fresh_ids or route.replay.paced
    return caching and route.record is None and not (audited or counted or replayed)


def _similar(route: Route, rule: Semantic, parts: Parts) -> SemanticLookup:
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
        route.jitter,
        parts.memory,
    )
