"""The headers that tell a client what the gateway did. Requests that are answered alike differ in a few values alone,
so that their headers are a template. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from gateway.bounded_cache import BoundedCache
from gateway.context import RequestContext
from gateway.messages import Provenance, Response, Verdict

HITS = frozenset({Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE})
MAX_TEMPLATES = 2048  # of half a kB; clients choose none of what makes one
IN_MS = (1e3).__mul__  # of seconds
VERIFY = "verify"


def cache_status(provenance: Provenance) -> str:
    """RFC 9211: `fwd` is said of what went to a backend alone."""
    form = _cache_status(provenance)
    return form % provenance.ttl_s if has_ttl(provenance) else form % ()


def _cache_status(provenance: Provenance) -> str:
    """As a format: of the seconds of freshness that are left, where it says them."""
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
    """The gateway's own headers as a format: `form` has a line each, with its line break. `ids`: how many of the lines
    name the request's id, first of all. The other slots say which values there are, in this order."""

    __slots__ = ("aged", "complex", "explains", "form", "ids", "judged", "predicted", "similar", "times", "ttl")

    def __init__(self, request: RequestContext, provenance: Provenance, id_header: str | None) -> None:
        """Raises `ValueError` on a line break in a name or a reason."""
        extra = () if id_header is None else ((id_header, "%b"),)
        own = [("x-request-id", "%b"), *extra, ("Server", "nearhit")]
        self.ids = 1 + len(extra)
        self.explains = request.expose_headers
        self.ttl = has_ttl(provenance)
        self.aged = provenance.age_s is not None
        self.similar = provenance.similarity is not None
        self.complex = request.complexity is not None
        self.times = self.explains and request.expose_timings and bool(request.timings or request.outlook)
        self.judged = request.judged is not None and VERIFY in request.timings
        self.predicted = request.outlook is not None
        if self.explains:
            own += _explain_headers(request, provenance)
            if self.times:
                own.append(("Server-Timing", _timing(request)))
        text = "".join([f"{name}: {value}\r\n" for name, value in own])
        if text.count("\r") != len(own) or text.count("\n") != len(own):
            raise ValueError("a header contains a line break")
        self.form = text.encode("utf-8", "surrogateescape")

    def lines(self, request: RequestContext, provenance: Provenance) -> bytes:
        """A request's id has no line break."""
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
                values.append(request.complexity)
            if self.times:
                at = len(values)
                values += map(IN_MS, request.timings.values())
                if self.judged and request.judged is not None:
                    values.insert(at + [*request.timings].index(VERIFY), request.judged.probability)
                if self.predicted and request.outlook is not None:
                    values.append(request.outlook.server_timing().encode())
        return self.form % tuple(values)


def _explain_headers(request: RequestContext, provenance: Provenance) -> list[tuple[str, str]]:
    """What the policy's `expose_headers` shows or hides."""
    headers = [("Cache-Status", _cache_status(provenance))]
    if provenance.age_s is not None:
        headers.append(("Age", "%d"))
    if provenance.similarity is not None:
        headers.append(("x-nearhit-similarity", "%.4f"))
    if provenance.backend is not None and provenance.verdict not in HITS:
        headers.append(("x-nearhit-backend", _escaped(provenance.backend)))
    if request.route:
        headers.append(("x-nearhit-route", _escaped(request.route)))
    if request.complexity is not None:
        headers.append(("x-nearhit-complexity", "%.2f"))
    return headers


def _timing(request: RequestContext) -> str:
    """Milliseconds of each step to 0.1 ms, what the verification came to, what was predicted."""
    server_timing = "" if request.judged is None else ';desc="p=%.3f"'
    steps = [f"{_escaped(name)}{server_timing if name == VERIFY else ''};dur=%.1f" for name in request.timings]
    if request.outlook is not None:
        steps.append('predict;desc="%b"')
    return ", ".join(steps)


class ResponseHeaders:
    """The gateway's own headers, by templates that are made once. To be used from one thread."""

    def __init__(self) -> None:
        self._templates: BoundedCache[Hashable, HeaderTemplate] = BoundedCache(MAX_TEMPLATES)

    def template(self, request: RequestContext, response: Response) -> HeaderTemplate:
        """Raises `ValueError` on a line break in a name or a reason."""
        provenance, dialect = response.provenance, request.dialect
        id_header = None if dialect is None else dialect.id_header
        if id_header is not None and any(name.lower() == id_header for name, _ in response.headers):
            id_header = None  # a backend's own id goes to its client
        key: Hashable = id_header
        if request.expose_headers:
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
                request.complexity is None,
                request.expose_timings,
                request.judged is None,
                request.outlook is None,
                *request.timings,
            )
        template = self._templates.get(key)
        if template is None:
            template = HeaderTemplate(request, provenance, id_header)
            self._templates.put(key, template)
        return template

    def lines(self, request: RequestContext, response: Response) -> bytes:
        """Each with its line break."""
        return self.template(request, response).lines(request, response.provenance)

    def all(self, request: RequestContext, response: Response) -> list[tuple[str, str]]:
        """All end-to-end headers of an answer, those of its backend or entry first."""
        lines = self.lines(request, response).decode("utf-8", "surrogateescape").split("\r\n")[:-1]
        return [*response.headers, *((name, value) for name, _, value in (line.partition(": ") for line in lines))]
