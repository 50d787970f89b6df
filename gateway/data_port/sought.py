"""Calls that are looked up by their connections, and what is known of those like them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp.helpers import rfc822_formatted_time

from gateway.cache.keys import Frame
from gateway.cache.looked import Sought
from gateway.data_port.heads import Head
from gateway.data_port.hit_heads import exact_form, hidden_form, semantic_form
from gateway.data_port.plans import Plan
from gateway.messages import Asked, Request
from gateway.observing.found import Found
from gateway.stages.beforehand import Beforehand, Look
from gateway.stages.policy import Terms

MAX_FORMS = 64
# The whole answer: it is counted and logged. Or the request, with what was found out: the stages are to go on with it.
# None: they are to begin.
Outcome = bytes | Request | None


class Asking(Protocol):
    """The connection that a call came on."""

    @property
    def stays(self) -> bool:
        """Whether it goes on behind this answer."""

    def relayed(self, answer: bytes) -> None:
        """The whole answer: the next request may be taken."""

    def left(self, head: Head, body: bytes, request: Request | None) -> None:
        """There is none. `request`: where something of it was found out."""

    def resumed(self, head: Head, body: bytes, request: Request | None) -> None:
        """Likewise; the stages are to begin at once."""


@dataclass(frozen=True, slots=True)
class Known:
    """How calls with one head, for one model, are looked up, and what of their hits is always the same. `frame` None:
    who may share their answers is said in each."""

    terms: Terms
    beforehand: Beforehand
    frame: Frame | None
    exact: Found
    semantic: Found
    forms: dict[tuple[str, bool], bytes]  # of heads, by content type and whether the hit is a semantic one

    def form(self, content_type: str, *, semantic: bool) -> bytes:
        """Raises `ValueError` on a header that would end its line."""
        headers, route = [("Content-Type", content_type)], self.terms.route
        if not route.expose_headers:
            form = hidden_form(headers)
        elif semantic:
            form = semantic_form(headers, route.name, self.beforehand.steps)
        else:
            form = exact_form(headers, route.name)
        if len(self.forms) >= MAX_FORMS:  # backends choose the types
            self.forms.clear()
        self.forms[content_type, semantic] = form
        return form

    def answer(self, request_id: bytes, hit: Sought, steps_ms: Sequence[float], near: bytes, body: bytes) -> bytes:
        """A request's id has no line break. `near`: as `Found.line`. Raises as `form`."""
        alike, kind = hit.alike, hit.entry.content_type
        semantic = alike is not None
        form = self.forms.get((kind, semantic)) or self.form(kind, semantic=semantic)
        date = rfc822_formatted_time().encode()
        if not self.terms.route.expose_headers:
            return form % (request_id, len(body), date, body)
        freshness = hit.freshness
        if alike is None:
            return form % (request_id, freshness.ttl_s, freshness.age_s, steps_ms[0], len(body), date, body)
        *before, verified_ms = steps_ms
        return form % (
            request_id, freshness.age_s, near, *before, alike.similarity, verified_ms, len(body), date, body,
        )  # fmt: skip


@dataclass(eq=False, slots=True)
class Came(Sought):
    """A call as it came, on the connection `to`; that is None once it has been told what was found, or has left.
    `received`: monotonic seconds. `asked` is there once it was read, and `known`, where the lookups know its like;
    `looks`: the steps that it takes, none where nothing is to be looked for."""

    plan: Plan
    head: Head
    body: bytes
    peer: str
    to: Asking | None
    received: float
    asked: Asked = field(init=False)
    known: Known | None = field(default=None, init=False)
    looks: tuple[Look, ...] = field(default=(), init=False)

    def cancel(self) -> None:
        """The client has left. The stages count it."""
        to, self.to = self.to, None
        if to is not None:
            to.resumed(self.head, self.body, None)

    def tell(self, found: Outcome) -> None:
        """Once; what else is told of it nobody hears."""
        to, self.to = self.to, None
        if to is None:
            return
        if isinstance(found, bytes):
            to.relayed(found)
        else:
            to.left(self.head, self.body, found)
