"""Find the conversation that a request continues, and note which entry answered which question."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gateway.cache.conversations import Continuation, ContinuedRoute
from gateway.cache.links import Links, turn_key
from gateway.calls import Call
from gateway.context import RequestContext
from gateway.entries import CacheKeys
from gateway.errors import StoreUnavailable
from gateway.features.conversations.history import AnsweredTurn, History, has_history
from gateway.messages import Response
from gateway.ports import Judgement

LOG = logging.getLogger("nearhit.semantic")


@dataclass(slots=True)
class StoredConversation:
    """The turns of a history that semantic hits answered, each with the fingerprint of the entry."""

    history: History
    turns: Sequence[tuple[AnsweredTurn, str]]
    parts: ContinuedRoute

    async def keys(self) -> CacheKeys | None:
        """Replace each question that a hit answered by that of the entry, from the first turn on.

        The exact key of the entry proves that it answers this question after these turns. So an entry that was erased
        or purged proves nothing, and neither does a note that is out of date.
        """
        replaced = False
        for turn, fingerprint in self.turns:
            try:
                entry = self.parts.store.peek(fingerprint) or await self.parts.store.get(fingerprint)
            except StoreUnavailable as error:
                self.parts.telemetry.store_errors.add()
                self.parts.telemetry.store_warnings.warn(LOG, "lookup failed", {"error": str(error)})
                return None
            if entry is None or entry.question is None or self.parts.store.banned(entry):
                continue
            if self.history.is_question_of(turn.place, entry.question, fingerprint):
                self.history.replace(turn.place, entry.question)
                replaced = True
        return self.history.keys() if replaced else None


@dataclass(slots=True)
class Conversations:
    """The conversations of one route."""

    parts: ContinuedRoute
    links: Links

    def find(self, request: RequestContext, call: Call) -> Continuation | None:
        links = self.links
        if not has_history(call) or request.directives.no_cache or not request.keys.scope:
            return None
        history = History(request, call)
        turns = [(turn, name) for turn in history.answered() if (name := links.turn(turn.scope, turn.question))]
        return StoredConversation(history, turns, self.parts) if turns else None

    def note(self, request: RequestContext, hit: Response) -> None:
        notes = self.parts.notes
        notes.waiting.append(partial(_note_of, request, request.judged, hit.provenance.fingerprint))
        notes.arrived.set()


def _note_of(request: RequestContext, judged: Judgement | None, fingerprint: str) -> str | None:
    """Return the key of the turn that a hit has answered, or None if no later request can prove it."""
    call = request.call
    if call is None or judged is None or judged.entry.fingerprint != fingerprint or call.is_split:
        return None
    answer = call.dialect.answer_text(call, judged.entry.payload, judged.entry.streamed)
    turn = History(request, call).asked(answer) if answer else None
    return None if turn is None else turn_key(turn.scope, turn.question, fingerprint)


def open_conversations(parts: ContinuedRoute) -> Conversations:
    return Conversations(parts, parts.links)
