"""Builds the record of a request: the facts that decide, without its text unless the policy keeps prompts. Pure
(docs/decisions/0021)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.cache.admission import roles_of
from gateway.cache.templates import is_framed
from gateway.calls import Call
from gateway.config.policy.model import Policy
from gateway.context import RequestContext
from gateway.dialects.operations import operation_of
from gateway.dialects.prompt_tokens import input_tokens
from gateway.entries import CacheDirectives
from gateway.features.recorder.rule import RecordRule
from gateway.messages import Provenance
from gateway.outcomes import Bypass, Verdict
from gateway.ports import Judgement
from gateway.request_fields import TrafficNotes
from gateway.routing.budget import budget_of
from gateway.scores import RequestFacts, TrafficFacts
from gateway.steps.traffic_log.digests import Digest, as_bytes
from gateway.steps.traffic_log.format import RecordedAnswer, RecordedCandidate, RecordedHit, RecordedRequest

MAX_PROMPT = 32_768  # characters; the text of a longer question is not kept

HITS = (Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE)

_SAMPLE_SPACE = 2**64


def header_names(policy: Policy) -> frozenset[str]:
    """Return the headers that the routes of a policy match on."""
    return frozenset(name for route in policy.routes for name, _ in route.match.headers)


def is_sampled(canonical: bytes, share: float) -> bool:
    """Return whether to record a question: all its repeats, or none of them. `canonical` is its digest."""
    return share >= 1.0 or int.from_bytes(canonical[:8], "big") < share * _SAMPLE_SPACE


def facts_of(
    request: RequestContext,
    call: Call,
    rule: RecordRule,
    headers: frozenset[str],
    digest: Digest,
    tenants: Digest,
    *,
    plain: bool = False,
) -> TrafficFacts | None:
    """Return the facts of a request, or None if its question is not in the sample."""
    # The replay has no headers, so those that are part of the keys become part of the digests.
    variant = f"{request.keys.variant}\0" if request.keys.variant else ""
    kind = f"{call.dialect.name}\0{call.operation}\0{variant}".encode("utf-8", "surrogatepass")
    canonical = digest(b"exact/" + kind + call.canonical)
    if not is_sampled(canonical, rule.share):
        return None
    keeps_prompt = rule.prompts and call.focus is not None and len(call.focus) <= MAX_PROMPT
    directives, temperature = request.directives, call.settings.get("temperature")
    facts = RequestFacts(
        request.path,
        call.model,
        call.dialect.name,
        call.operation,
        tuple(_matched_headers(request, headers)),
        tenants(request.client.tenant),
        digest(b"user/" + as_bytes(call.user)) if call.user else b"",
        canonical,
        digest(b"scope/" + kind + call.context),
        None if call.focus is None else digest(b"question/" + as_bytes(call.focus)),
        *_directives(directives),
        None if call.uncached is None else str(call.uncached),
        call.batch is not None,
        call.stream,
        input_tokens(call),
        call.max_tokens,
        float(temperature) if isinstance(temperature, int | float) else None,
        tuple(dict.fromkeys(str(role) for role in roles_of(call))),
        None if request.work.background else budget_of(request.headers, None).total_s,
        request.work.background,
    )
    return TrafficFacts(plain, facts, call.focus, keeps_prompt)


def passed_facts_of(
    request: RequestContext, rule: RecordRule, headers: frozenset[str], digest: Digest, tenants: Digest
) -> TrafficFacts | None:
    """Return the facts of a request that no dialect reads, such as one for a picture. Return None if it spends nothing,
    or is not in the sample. Its body is in none of the digests."""
    operation = operation_of(request.method, request.path, None, upgrades=request.opens_websocket)
    canonical = digest(b"passed/" + as_bytes(request.id))
    if operation.is_free or not is_sampled(canonical, rule.share):
        return None
    facts = RequestFacts(
        request.path,
        request.model,
        "",
        operation.name,
        tuple(_matched_headers(request, headers)),
        tenants(request.client.tenant),
        user=b"",
        canonical=canonical,
        context=canonical,
        question=None,
        no_store=request.directives.no_store,
        no_cache=request.directives.no_cache,
        only_if_cached=request.directives.only_if_cached,
        max_age_s=None,
        min_fresh_s=0.0,
        uncached=str(Bypass.PASS_THROUGH),
        inputs=False,
        stream=False,
        input_tokens=0,
        max_tokens=None,
        temperature=None,
        roles=(),
        budget_s=None,
        patient=request.work.background,
    )
    return TrafficFacts(plain=False, request=facts, question=None, keeps_prompt=False)


def recorded_of(
    traffic: TrafficNotes,
    request: RequestContext,
    provenance: Provenance,
    *,
    at: float,
    policy: str,
    status: int,
    seconds: float,
    digest: Digest,
) -> RecordedRequest:
    """Return the record of a request that is over. It arrived at the wall-clock time `at`. `policy` is the hash of the
    policy in force."""
    facts, inspected = traffic.facts, traffic.inspected
    embedding, best, stored = request.embedding, request.judged, request.stored
    return RecordedRequest(
        at,
        request.id,
        policy,
        request.route,
        facts.request,
        facts.question if facts.keeps_prompt else None,
        None if embedding is None else embedding.vector.astype("<f2").tobytes(),
        embedding is None or not embedding.partial,
        status=status,
        verdict=str(provenance.verdict),
        reason=None if provenance.reason is None else str(provenance.reason),
        backend=provenance.backend,
        tier=provenance.tier,
        complexity=provenance.complexity if request.estimates.complexity is None else request.estimates.complexity,
        entry=b"" if stored is None else digest(stored.fingerprint),
        stored=stored is not None,
        answer=None
        if inspected is None
        else RecordedAnswer(
            str(inspected.inspection.admission),
            inspected.inspection.input_tokens,
            inspected.inspection.output_tokens,
            inspected.dollars,
            inspected.size,
            inspected.seconds,
        ),
        hit=_hit(provenance, digest),
        shift=0.0 if best is None or best.verbatim or facts.plain else best.score - best.opinion.score,
        threshold=None if best is None else best.threshold,
        similarity=None if best is None else best.similarity,
        considered=tuple(_considered(traffic, request.judged, digest)),
        seconds=seconds,
        stages=dict(request.timings),
        subjects=request.subjects,
    )


def _hit(provenance: Provenance, digest: Digest) -> RecordedHit | None:
    if not provenance.fingerprint or provenance.verdict not in HITS:
        return None
    return RecordedHit(
        digest(provenance.fingerprint),
        provenance.age_s or 0.0,
        provenance.saved_tokens,
        provenance.output_tokens,
        provenance.saved_dollars,
        provenance.upstream_s,
    )


def _considered(traffic: TrafficNotes, best: Judgement | None, digest: Digest) -> Iterator[RecordedCandidate]:
    facts, stored = traffic.facts, [candidate.entry.question or "" for candidate in traffic.considered]
    for candidate in traffic.considered:
        opinion = candidate.opinion
        yield RecordedCandidate(
            digest(candidate.entry.fingerprint),
            candidate.similarity,
            candidate.entry.created,
            None if facts.plain else opinion.score,
            opinion.probability,
            None if opinion.veto is None else str(opinion.veto),
            None if opinion.doubt is None else str(opinion.doubt),
            _is_settled(facts, candidate, stored, is_best=candidate is best),
        )


def _is_settled(facts: TrafficFacts, candidate: Judgement, stored: Sequence[str], *, is_best: bool) -> bool:
    """Return whether the recorded score is the one that counts: no second opinion and no comparison of parts is due."""
    if candidate.opinion.veto is not None or facts.plain:
        return True
    if not candidate.final:
        return False
    return is_best or not is_framed(facts.question or "", candidate.entry.question or "", stored)


def _matched_headers(request: RequestContext, names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the headers of these names, without those that carry secrets."""
    if not names:
        return
    for name, value in request.headers.items():
        if name.lower() in names and not request.client.credentials.rules.is_secret(name):
            yield name.lower(), value


def _directives(directives: CacheDirectives) -> tuple[bool, bool, bool, float | None, float]:
    return (
        directives.no_store,
        directives.no_cache,
        directives.only_if_cached,
        directives.max_age_s,
        directives.min_fresh_s,
    )
