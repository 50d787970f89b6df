"""Asks a backend whether two answers say the same, where embeddings cannot tell."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping

from gateway.body_streams import close_body
from gateway.cache.judge_prompt import MAX_TOKENS, judge_prompt, verdict_of
from gateway.cache.price import Price
from gateway.cache.threshold.wrong_hits import Label
from gateway.context import HeadMemo, RequestContext
from gateway.dialects.openai import CHAT, OpenAI, chat_body
from gateway.errors import Refused
from gateway.messages import CacheDirectives, Entry, Whole
from gateway.upstream.backend import Pool

LOG = logging.getLogger("nearhit.quality")
Verdict = tuple[Label, float]
"""What the judge said, and what it cost in US dollars."""
NOTHING: Verdict = (Label.UNDECIDED, 0.0)


class Judge:
    """Every backend can be a judge: all of them answer chat completions. It is asked in the name of the client whose
    hit is audited, with that client's credentials where they are passed through."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        prices: Mapping[str, Price],
        mark: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._pools = pools
        self._prices = prices
        self._mark = mark
        self._dialect = OpenAI()

    async def ask(self, name: str, request: RequestContext, stored: Entry, fresh: Entry) -> Verdict:
        """Never raises for what may be wrong with a backend: then nothing is decided."""
        call = request.call
        if call is None or call.question is None:
            return NOTHING
        texts = [call.dialect.answer_text(call, entry.payload, entry.streamed) for entry in (stored, fresh)]
        first, second = texts
        if first is None or second is None:
            return NOTHING
        prompt = judge_prompt(call.question, first, second, self._mark())
        if prompt is None:
            return NOTHING
        try:
            return await self._send(name, own_request(request, prompt, call.model, MAX_TOKENS))
        except Refused as error:
            LOG.warning("the judge did not answer", extra={"fields": {**request.log_fields, "error": error.message}})
            return NOTHING

    async def _send(self, name: str, request: RequestContext) -> Verdict:
        call = request.call
        assert call is not None
        response = await self._pools[name].call(request)
        if response.status != 200 or not isinstance(response.body, Whole):
            await close_body(response.body)
            return NOTHING
        payload = (response.body.data,)
        seen = self._dialect.inspect(call, payload, False)
        cost = self._prices[name].of(seen.input_tokens, seen.output_tokens)
        return verdict_of(self._dialect.answer_text(call, payload, False)), cost


def own_request(request: RequestContext, prompt: str, model: str, max_tokens: int) -> RequestContext:
    """A question of the gateway's own, in the name of the client of `request`."""
    body = chat_body(prompt, model=model, max_tokens=max_tokens)
    own = request.child("judge")
    own.method, own.path, own.query = "POST", CHAT, ""
    own.head, own.head_digest = HeadMemo(), b""
    own.body, own.call = body, OpenAI().parse(CHAT, body, {})
    own.directives = CacheDirectives(no_store=True)
    own.scope = own.fingerprint = ""
    own.embedding = None
    return own
