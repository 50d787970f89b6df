"""Track the questions in flight, so that a request in other words can wait for the same answer. Bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.context import RequestContext
from gateway.entries import Entry, Vector

# Searched by a matrix product: 20 us for this many vectors of 384 dimensions. Further questions are not tracked.
MAX_IN_SCOPE = 64
MAX_SCOPES = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class InflightQuestion:
    """A question in flight.

    `entry` is the future entry without its answer. `completed` is done when the flight is over, with or without
    success.
    """

    entry: Entry
    vector: Vector
    completed: asyncio.Future[None]


class InflightQuestions:
    """The questions in flight, by scope. It serves one event loop."""

    def __init__(self) -> None:
        self._scopes: dict[str, list[InflightQuestion]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._scopes.values()))

    def in_scope(self, scope: str) -> Sequence[InflightQuestion]:
        """Return the questions of a scope. Requests never see those of other scopes."""
        return tuple(self._scopes.get(scope, ()))

    def add(self, request: RequestContext, vector: Vector) -> InflightQuestion | None:
        """Track a question. Return None where there are too many already, or nothing will be stored."""
        if request.client.read_only:  # its answer is not stored
            return None
        if request.keys.scope not in self._scopes and len(self._scopes) >= MAX_SCOPES:
            return None
        questions = self._scopes.setdefault(request.keys.scope, [])
        if len(questions) >= MAX_IN_SCOPE:
            return None
        completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        question = InflightQuestion(build_entry(request), vector, completed)
        questions.append(question)
        return question

    def complete(self, question: InflightQuestion) -> None:
        """Remove a question, once its answer is stored or never will be. Call this exactly once."""
        questions = self._scopes[question.entry.scope]
        questions.remove(question)
        if not questions:
            del self._scopes[question.entry.scope]
        question.completed.set_result(None)


def build_entry(
    request: RequestContext,
    *,
    streamed: bool = False,
    payload: tuple[bytes, ...] = (),
    content_type: str = "",
    created: float = 0.0,
    expires: float = 0.0,
    backend: str = "",
    input_tokens: int = 0,
    output_tokens: int = 0,
    cost_dollars: float = 0.0,
    upstream_s: float = 0.0,
    tags: tuple[str, ...] = (),
) -> Entry:
    """Build the entry for a question and its answer, or the part that is known before the answer."""
    call = request.call
    assert call is not None  # a request that was embedded or answered by a backend has a question
    return Entry(
        fingerprint=request.keys.fingerprint,
        scope=request.keys.scope,
        tenant=request.client.tenant,
        route=request.route,
        model=call.model,
        operation=call.operation,
        dialect=call.dialect.name,
        question=call.focus,
        streamed=streamed,
        payload=payload,
        content_type=content_type,
        created=created,
        expires=expires,
        backend=backend,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost_dollars=cost_dollars,
        upstream_s=upstream_s,
        tags=tags,
        askers=() if request.asker is None else request.asker.names,
        subjects=request.subjects,
    )
