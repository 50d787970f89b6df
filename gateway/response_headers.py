"""The headers that tell a client what the gateway did. Pure."""

from __future__ import annotations

from gateway.messages import Provenance, Verdict
from gateway.observing.trace import Trace

HITS = frozenset({Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE})


def cache_status(provenance: Provenance) -> str:
    """RFC 9211: `fwd` is said of what went to a backend alone."""
    verdict = provenance.verdict
    if verdict in HITS:
        ttl = f"; ttl={int(provenance.ttl_s)}" if provenance.ttl_s is not None and verdict is Verdict.EXACT else ""
        return f"nearhit; hit; detail={verdict}{ttl}"
    if verdict is Verdict.COALESCED:
        return "nearhit; fwd=miss; collapsed"
    if not provenance.forwarded:
        return f"nearhit; detail={provenance.reason}"
    stored = "; stored" if provenance.stored else ""
    if verdict is Verdict.BYPASS:
        return f"nearhit; fwd=bypass; detail={provenance.reason}{stored}"
    return f"nearhit; fwd=miss{stored}"


def explaining(provenance: Provenance, trace: Trace) -> list[tuple[str, str]]:
    """What the policy's `expose_headers` shows or hides."""
    headers = [("Cache-Status", cache_status(provenance))]
    if provenance.age_s is not None:
        headers.append(("Age", str(int(provenance.age_s))))
    if provenance.similarity is not None:
        headers.append(("x-nearhit-similarity", f"{provenance.similarity:.4f}"))
    if provenance.backend is not None and provenance.verdict not in HITS:
        headers.append(("x-nearhit-backend", provenance.backend))
    if trace.route:
        headers.append(("x-nearhit-route", trace.route))
    if trace.complexity is not None:
        headers.append(("x-nearhit-complexity", f"{trace.complexity:.2f}"))
    timing = trace.server_timing()
    if timing:
        headers.append(("Server-Timing", timing))
    return headers


def answer_headers(
    headers: tuple[tuple[str, str], ...], request_id: str, trace: Trace, provenance: Provenance
) -> list[tuple[str, str]]:
    """All end-to-end headers of an answer, those of its backend or entry first."""
    named = [*headers, ("x-request-id", request_id)]
    also = None if trace.dialect is None else trace.dialect.id_header
    if also is not None and all(name.lower() != also for name, _ in headers):  # a backend's own id goes to its client
        named.append((also, request_id))
    named.append(("Server", "nearhit"))
    return named + explaining(provenance, trace) if trace.expose_headers else named
