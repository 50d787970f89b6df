"""Answers a call with several inputs input by input, so that requests share answers to the inputs that they have in
common. Missing inputs are fetched in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from gateway.cache.keys import keys_of, owner_of
from gateway.calls import Call
from gateway.context import Handler, RequestContext, resolve_response
from gateway.errors import BackendError, MalformedResponse
from gateway.messages import FullBody, Provenance, Response
from gateway.outcomes import Verdict
from gateway.upstream.input_batch import MissBatch

MAX_INPUTS = 2048  # OpenAI's bound on the inputs of a call


class SplitInputs:
    """Splits calls and joins their answers. `share` is the setting of the route. `on_hit` receives the fingerprint of
    every hit."""

    def __init__(self, share: str, on_hit: Callable[[str], None]) -> None:
        self._share = share
        self._on_hit = on_hit

    async def answer(self, request: RequestContext, call: Call, forward: Handler) -> Response:
        """Answer a call; `forward` answers each of its inputs.

        The request gets what its inputs have reached: the guard around them must not pass it on once more.
        """
        batch = call.batch
        parts = () if batch is None else batch.split(call)
        if batch is None or not 0 < len(parts) <= MAX_INPUTS:
            return await resolve_response(forward(request))
        requests = [self._child_request(request, part) for part in parts]
        keys = [part.keys.fingerprint for part in requests]
        unique_parts = dict(zip(keys, requests, strict=True))  # equal inputs are looked up once
        gathering = MissBatch(batch, unique_parts)
        try:
            answers = await _gather([self._answer(part, gathering, forward) for part in unique_parts.values()])
        except Exception as error:
            request.outcome = error
            raise
        finally:
            request.reached = max(part.reached for part in unique_parts.values())
        answers_by_key = dict(zip(unique_parts, answers, strict=True))
        self._record_timings(request, list(unique_parts.values()))
        failed = next((answer for answer in answers if answer.status != 200), None)
        if failed is not None:
            request.outcome = failed
            return failed
        ordered = [answers_by_key[key] for key in keys]
        try:
            body = FullBody(batch.join_answers([_data(answer) for answer in ordered]))
        except MalformedResponse as error:
            raise BackendError(str(error), retryable=False) from None
        fetched = [answer for answer in answers if answer.provenance.verdict is not Verdict.EXACT]
        headers, provenance = (fetched or answers)[0].headers, self._provenance([each.provenance for each in answers])
        request.outcome = joined = Response(200, headers, body, provenance)
        return joined

    def _child_request(self, request: RequestContext, call: Call) -> RequestContext:
        part = request.child("part")
        part.call = call
        owner = owner_of(self._share, request.client.tenant, call.user)
        part.keys = keys_of(owner, request.route, call, request.query, request.keys.variant)
        if part.asker is not None:
            part.keys = part.keys._replace(fingerprint=part.asker.own_key(part.keys.fingerprint))
        return part

    async def _answer(self, part: RequestContext, gathering: MissBatch, forward: Handler) -> Response:
        part.work, key = part.work._replace(batch=gathering), part.keys.fingerprint
        try:
            return await resolve_response(forward(part))
        finally:
            gathering.mark_resolved(key)

    def _record_timings(self, request: RequestContext, parts: Sequence[RequestContext]) -> None:
        """Add the longest time of each stage: the inputs run concurrently."""
        for name in dict.fromkeys(name for part in parts for name in part.timings):
            request.add_time(name, max(part.timings.get(name, 0.0) for part in parts))

    def _provenance(self, origins: Sequence[Provenance]) -> Provenance:
        """Return a hit if every input was one; else the first miss, with the savings of the hits."""
        hits = [origin for origin in origins if origin.verdict is Verdict.EXACT]
        for hit in hits:
            self._on_hit(hit.fingerprint)
        saved_tokens, saved_dollars = sum(o.saved_tokens for o in hits), sum(o.saved_dollars for o in hits)
        miss = next((origin for origin in origins if origin.verdict is not Verdict.EXACT), None)
        if miss is not None:
            stored = any(origin.stored for origin in origins)
            return replace(miss, stored=stored, saved_tokens=saved_tokens, saved_dollars=saved_dollars)
        return Provenance(
            Verdict.EXACT,
            age_s=max(hit.age_s or 0.0 for hit in hits),
            ttl_s=min(hit.ttl_s or 0.0 for hit in hits),
            saved_tokens=saved_tokens,
            saved_dollars=saved_dollars,
        )


async def _gather(coroutines: Sequence[Coroutine[Any, Any, Response]]) -> list[Response]:
    """Return the answers in order. Raise the first error once all have ended, so that no call outlives the request."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
    return [task.result() for task in tasks]


def _data(answer: Response) -> bytes:
    if not isinstance(answer.body, FullBody):
        raise MalformedResponse("an embeddings answer is a stream")
    return answer.body.data
