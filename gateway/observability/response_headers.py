"""Builds the headers that tell a client what the gateway did. Answers of the same kind differ in a few values only, so
their headers are a template. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from gateway.bounded_cache import BoundedCache
from gateway.context import RequestContext
from gateway.messages import Provenance, Response
from gateway.outcomes import Verdict

HITS = frozenset({Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE})
MAX_TEMPLATES = 2048  # half a kB each; clients cannot choose any part of their keys
IN_MS = (1e3).__mul__  # seconds -> milliseconds
VERIFY = "verify"


def cache_status(provenance: Provenance) -> str:
    """Return the value of `Cache-Status` (RFC 9211): `fwd` only for requests that went to a backend."""
    form = _cache_status(provenance)
    return form % provenance.ttl_s if has_ttl(provenance) else form % ()


def _cache_status(provenance: Provenance) -> str:
    """Return the value as a format; it takes the remaining seconds of freshness if `has_ttl`."""
    verdict = provenance.verdict
    if verdict in HITS:
        ttl = "; ttl=%d" if has_ttl(provenance) else ""
        return f"nearhit; hit; detail={verdict}{ttl}"
    if verdict is Verdict.COALESCED:
        return "nearhit; fwd=miss; collapsed"
    if not provenance.forwarded:
        return f"nearhit; detail={_escaped(str(provenance.reason))}"
    stored = "; stored" if provenance.stored else ""
    if verdict is Verdict.BYPASS:
        return f"nearhit; fwd=bypass; detail={_escaped(str(provenance.reason))}{stored}"
    return f"nearhit; fwd=miss{stored}"


def has_ttl(provenance: Provenance) -> bool:
    return provenance.verdict is Verdict.EXACT and provenance.ttl_s is not None


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


class HeaderTemplate:
    """The gateway's own headers as a format. `form` has one line for each, with its line break. The first `ids` lines
    have the request id. The other attributes tell which values follow."""

    __slots__ = ("aged", "complex", "explains", "form", "ids", "judged", "predicted", "similar", "times", "ttl")

    def __init__(self, request: RequestContext, provenance: Provenance, id_header: str | None) -> None:
        """Raise `ValueError` if a name or a reason contains a line break."""
        extra = () if id_header is None else ((id_header, "%b"),)
        own = [("x-request-id", "%b"), *extra, ("Server", "nearhit")]
        self.ids = 1 + len(extra)
        self.explains = request.exposure.headers
        self.ttl = has_ttl(provenance)
        self.aged = provenance.age_s is not None
        self.similar = provenance.similarity is not None
        self.complex = request.estimates.complexity is not None
        self.times = self.explains and request.exposure.timings and bool(request.timings or request.estimates.outlook)
        self.judged = request.judged is not None and VERIFY in request.timings
        self.predicted = request.estimates.outlook is not None
        if self.explains:
            own += _explain_headers(request, provenance)
            if self.times:
                own.append(("Server-Timing", _timing(request)))
        text = "".join([f"{name}: {value}\r\n" for name, value in own])
        if text.count("\r") != len(own) or text.count("\n") != len(own):
            raise ValueError("a header contains a line break")
        self.form = text.encode("utf-8", "surrogateescape")

    def lines(self, request: RequestContext, provenance: Provenance) -> bytes:
        """Return the header lines. A request id has no line break, so it adds no header."""
        values: list[Any] = [request.id.encode()]
        if self.ids > 1:
            values *= self.ids
        if self.explains:
            if self.ttl:
                values.append(provenance.ttl_s)
            if self.aged:
                values.append(provenance.age_s)
            if self.similar:
                values.append(provenance.similarity)
            if self.complex:
                values.append(request.estimates.complexity)
            if self.times:
                at = len(values)
                values += map(IN_MS, request.timings.values())
                if self.judged and request.judged is not None:
                    values.insert(at + [*request.timings].index(VERIFY), request.judged.probability)
                if self.predicted and request.estimates.outlook is not None:
                    values.append(request.estimates.outlook.server_timing().encode())
        return self.form % tuple(values)


def _explain_headers(request: RequestContext, provenance: Provenance) -> list[tuple[str, str]]:
    """Return the headers that `expose_headers` of the policy shows or hides."""
    headers = [("Cache-Status", _cache_status(provenance))]
    if provenance.age_s is not None:
        headers.append(("Age", "%d"))
    if provenance.similarity is not None:
        headers.append(("x-nearhit-similarity", "%.4f"))
    if provenance.backend is not None and provenance.verdict not in HITS:
        headers.append(("x-nearhit-backend", _escaped(provenance.backend)))
    if request.route:
        headers.append(("x-nearhit-route", _escaped(request.route)))
    if request.estimates.complexity is not None:
        headers.append(("x-nearhit-complexity", "%.2f"))
    return headers


def _timing(request: RequestContext) -> str:
    """Return `Server-Timing`: each step in whole milliseconds, the verifier's probability, and the latency prediction.

    Finer times would help a client to tell what else the gateway does."""
    server_timing = "" if request.judged is None else ';desc="p=%.3f"'
    steps = [f"{_escaped(name)}{server_timing if name == VERIFY else ''};dur=%.0f" for name in request.timings]
    if request.estimates.outlook is not None:
        steps.append('predict;desc="%b"')
    return ", ".join(steps)


class ResponseHeaders:
    """Builds the gateway's own headers from cached templates. For use from one thread."""

    def __init__(self) -> None:
        self._templates: BoundedCache[Hashable, HeaderTemplate] = BoundedCache(MAX_TEMPLATES)

    def template(self, request: RequestContext, response: Response) -> HeaderTemplate:
        """Return the template of a response. Raise `ValueError` if a name or a reason contains a line break."""
        provenance, dialect = response.provenance, request.dialect
        id_header = None if dialect is None else dialect.id_header
        if id_header is not None and any(name.lower() == id_header for name, _ in response.headers):
            id_header = None  # the client gets the id that the backend set
        key: Hashable = id_header
        if request.exposure.headers:
            key = (
                id_header,
                request.route,
                provenance.verdict,
                provenance.reason,
                provenance.backend,
                provenance.stored,
                provenance.forwarded,
                provenance.ttl_s is None,
                provenance.age_s is None,
                provenance.similarity is None,
                request.estimates.complexity is None,
                request.exposure.timings,
                request.judged is None,
                request.estimates.outlook is None,
                *request.timings,
            )
        template = self._templates.get(key)
        if template is None:
            template = HeaderTemplate(request, provenance, id_header)
            self._templates.put(key, template)
        return template

    def lines(self, request: RequestContext, response: Response) -> bytes:
        """Return the gateway's own header lines, each with its line break."""
        return self.template(request, response).lines(request, response.provenance)

    def all(self, request: RequestContext, response: Response) -> list[tuple[str, str]]:
        """Return all end-to-end headers of an answer, those of its backend or entry first."""
        lines = self.lines(request, response).decode("utf-8", "surrogateescape").split("\r\n")[:-1]
        return [*response.headers, *((name, value) for name, _, value in (line.partition(": ") for line in lines))]
