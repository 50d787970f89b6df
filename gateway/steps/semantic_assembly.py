"""Builds the similarity cache of a route. Only a gateway with a route that compares questions imports this module."""

from __future__ import annotations

from gateway.adapters.embedding.embedders import BatchingEmbedder
from gateway.cache.conversations import ContinuedRoute, RouteConversations, conversations_of
from gateway.cache.judgement import CandidateScorer, floor_of
from gateway.cache.screening import RouteScreen, Screen, ScreenedRoute
from gateway.cache.tool_calls import ToolCallRule
from gateway.config.policy.model import Route
from gateway.config.policy.schema import SemanticRule
from gateway.context import Handler
from gateway.entries import Lifetime
from gateway.steps.exact_cache import EmbeddingPrefetch
from gateway.steps.parts import Parts
from gateway.steps.semantic_cache import AuditedHits, SemanticCache, SimilarInflight
from gateway.steps.semantic_lookup import SemanticLookup


def prefetch_of(route: Route, parts: Parts) -> EmbeddingPrefetch | None:
    """Return what embeds a question during the exact lookup. A screen decides first whether it has to be embedded."""
    embedder = parts.space.embedder
    if not isinstance(embedder, BatchingEmbedder) or screen_of(route, parts) is not None:
        return None
    return EmbeddingPrefetch(embedder)


def semantic_cache(inner: Handler, route: Route, parts: Parts) -> Handler:
    rule = route.semantic
    assert rule is not None  # else the step is absent
    lookup = semantic_lookup(route, rule, parts)
    audits = AuditedHits(parts.space.audits, rule.audits) if rule.audits.share > 0 else None
    inflight = None
    if rule.coalesce:
        inflight = SimilarInflight(
            lookup, parts.space.inflight_questions, parts.unstorable, parts.clock, parts.telemetry
        )
    return SemanticCache(
        inner,
        parts.space.embedder,
        lookup,
        audits,
        inflight,
        route_screen(route, parts, lookup),
        route_conversations(rule, parts),
        load=parts.space.load,
        scores_whole=len(route.target.tiers) > 1,
    ).__call__


def route_conversations(rule: SemanticRule, parts: Parts) -> RouteConversations | None:
    """Return the conversations of a route, or None if its requests continue none."""
    if not rule.conversations:
        return None
    return conversations_of(ContinuedRoute(parts.memory.links, parts.store, parts.turn_notes, parts.telemetry))


def screen_of(route: Route, parts: Parts) -> Screen | None:
    """Return the screen that lets questions of the route go before they are embedded, or None if it has none.

    The route may need the embedding for the complexity or for questions in flight. The screen's prior is no guide to
    the hits of a `min_similarity` below the floor of the verifier.
    """
    rule, space = route.semantic, parts.space
    if rule is None or not rule.screen or rule.coalesce or len(route.target.tiers) > 1:
        return None
    return space.screen if floor_of(rule.acceptance, space.verifier) >= space.verifier.floor else None


def route_screen(route: Route, parts: Parts, lookup: SemanticLookup) -> RouteScreen | None:
    """Return the screen with the parts that it needs, as `screen_of` does."""
    space, screen = parts.space, screen_of(route, parts)
    if screen is None:
        return None
    return screen.of_route(
        ScreenedRoute(space.late, lookup.would_hit, parts.memory.links, parts.clock, parts.telemetry)
    )


def semantic_lookup(route: Route, rule: SemanticRule, parts: Parts) -> SemanticLookup:
    space = parts.space
    return SemanticLookup(
        space.index,
        parts.store,
        CandidateScorer(
            space.verifier,
            space.embedder,
            rule.acceptance,
            parts.memory.counterexamples,
            space.decoys,
            space.load,
        ),
        space.controls,
        parts.clock,
        parts.telemetry,
        rule,
        route.of(ToolCallRule),
        Lifetime(rule.ttl, route.jitter),  # a similar answer must be fresh: stale as well would be a second doubt
        parts.memory,
        floor=floor_of(rule.acceptance, space.verifier),
        embedder=space.embedder.fingerprint,
    )
