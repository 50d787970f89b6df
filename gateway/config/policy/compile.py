"""From checked rules to routes that can be asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.config.policy.limits import compiled_limits
from gateway.config.policy.model import (
    AdmissionRules,
    Audit,
    Match,
    Promised,
    Recording,
    Replay,
    Route,
    Semantic,
    Target,
    pattern,
    tier_of_parts,
)
from gateway.config.policy.schema import AuditRule, MatchRule, PolicyFile, RouteRule, SemanticRule, TargetRule
from gateway.config.policy.targets import Cascade, Shadow
from gateway.config.yaml_loader import Source
from gateway.ports import Acceptance
from gateway.priority import Priority

# Where the light model's answer is as likely to be worse as not.
DEFAULT_THRESHOLD = 0.5


def compiled(file: PolicyFile, source: Source) -> Iterator[Route]:
    """The routes of one file."""
    for index, rule in enumerate(file.routes):
        yield _route(rule, source.file, source.locate(("routes", index))[0])


def _route(rule: RouteRule, file: str, line: int) -> Route:
    cache = rule.cache
    return Route(
        name=rule.name,
        target=_target(rule.route),
        match=_match(rule.match),
        exact_ttl_s=cache.exact.ttl if cache.exact else None,
        semantic=_semantic(cache.semantic) if cache.semantic else None,
        share=cache.share,
        jitter=cache.jitter,
        stale_while_revalidate_s=cache.stale_while_revalidate,
        stale_if_error_s=cache.stale_if_error,
        admission=AdmissionRules(**dict(cache.admit)),
        replay=Replay(cache.replay == "paced", cache.replay_rate, cache.fresh_ids),
        latency_budget_s=rule.route.latency_budget,
        promise=Promised(rule.route.confidence, rule.route.confidence_of == "request", rule.route.late),
        limits=compiled_limits(rule.limits),
        priority=Priority[rule.route.priority.upper()],
        client_priority=rule.route.client_priority,
        record=None if rule.record is None else Recording(rule.record.share, rule.record.prompts),
        expose_headers=rule.expose_headers,
        file=file,
        line=line,
    )


def _target(rule: TargetRule) -> Target:
    return replace(
        _tiers(rule),
        large_share=rule.large_share,
        quality=rule.quality,
        audit=_audit(rule.audit),
        learn=rule.learn,
        fallback=rule.fallback,
        shadow=None if rule.shadow is None else Shadow(**dict(rule.shadow)),
        cascade=None if rule.cascade is None else Cascade(**dict(rule.cascade)),
    )


def _tiers(rule: TargetRule) -> Target:
    if rule.backend is not None:
        return Target((tier_of_parts(None, rule.backend),))
    given = rule.tiers if rule.tiers is not None else (rule.light, rule.large)
    *lower, best = [parts for parts in given if parts is not None]  # the schema has all of them, or a backend
    names = ["light", *(None for _ in lower[1:]), "large"]
    tiers = tuple(tier_of_parts(name, parts) for name, parts in zip(names, [*lower, best], strict=True))
    return Target(tiers, (DEFAULT_THRESHOLD,) if rule.escalate_above is None else rule.escalate_above)


def _match(rule: MatchRule) -> Match:
    headers = ((name.lower(), pattern(glob)) for name, glob in rule.headers.items())
    return Match(
        pattern(rule.path),
        pattern(rule.model),
        pattern(rule.tenant),
        # `*` asks for a header that is there, whatever it says.
        tuple((name, wanted or _anything) for name, wanted in headers),
    )


def _anything(_: str) -> bool:
    return True


def _semantic(rule: SemanticRule) -> Semantic:
    return Semantic(
        rule.ttl,
        Acceptance(rule.min_similarity, rule.max_wrong_hits),
        _audit(rule.audit),
        rule.learn,
        rule.coalesce,
    )


def _audit(rule: AuditRule | None) -> Audit:
    return Audit() if rule is None else Audit(rule.share, rule.per_hour, rule.cost_per_day, rule.judge)
