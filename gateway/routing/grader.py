"""Asks a backend how likely an answer is right."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping

from gateway.body_streams import close_body
from gateway.cache.answer_judge import own_request
from gateway.context import RequestContext
from gateway.errors import Refused
from gateway.messages import Usage, Whole
from gateway.routing.grader_prompt import MAX_TOKENS, grade_of, grade_prompt
from gateway.upstream.backend import Pool

LOG = logging.getLogger("nearhit.cascade")


class Grader:
    """As `Judge` is: every backend can be one, and is asked in the name of the client."""

    def __init__(self, pools: Mapping[str, Pool], mark: Callable[[], str] = lambda: secrets.token_hex(8)) -> None:
        self._pools = pools
        self._mark = mark

    async def grade(
        self, name: str, request: RequestContext, question: str, answer: str
    ) -> tuple[float | None, tuple[Usage, ...]]:
        """-> (the grade in [0, 1], None where there is none; what it cost). Never raises for what may be wrong with a
        backend."""
        prompt = grade_prompt(question, answer, self._mark())
        if prompt is None or request.call is None:
            return None, ()
        asked = own_request(request, prompt, request.call.model, MAX_TOKENS)
        call = asked.call
        assert call is not None
        try:
            response = await self._pools[name].call(asked)
        except Refused as error:
            LOG.warning("an answer was not graded", extra={"fields": {**request.log_fields, "error": error.message}})
            return None, ()
        if response.status != 200 or not isinstance(response.body, Whole):
            await close_body(response.body)
            return None, ()
        payload = (response.body.data,)
        seen = call.dialect.inspect(call, payload, False)
        usage = Usage(name, seen.input_tokens, seen.output_tokens)
        return grade_of(call.dialect.answer_text(call, payload, False)), (usage,)
