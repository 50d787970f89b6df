"""Feedback of clients on semantic hits: the hits it may refer to, counterexamples, and forwarding to other gateways."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.bounded_cache import BoundedCache
from gateway.errors import StoreUnavailable
from gateway.ports import MAX_COUNTEREXAMPLES, Judgement, Replies
from gateway.tasks import Background


@dataclass(slots=True)
class Relation:
    """That the answer of `fingerprint` was served for a question of this scope."""

    scope: str  # hex
    asked: str  # hex SHA-256 of the question: the text itself is not needed again
    fingerprint: str  # hex, of the entry that was served

    def key(self) -> str:
        return f"{self.scope}:{self.asked}:{self.fingerprint}"


def digest_of(question: str) -> str:
    """What a relation has of a question."""
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()


def relation_of(scope: str, question: str, fingerprint: str) -> Relation:
    return Relation(scope, digest_of(question), fingerprint)


class Counterexamples:
    """Relations that were wrong. Whatever the similarity says, they are not served again."""

    def __init__(self, limit: int = MAX_COUNTEREXAMPLES) -> None:
        self._keys: BoundedCache[str, bool] = BoundedCache(limit)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, relation: Relation) -> bool:
        return relation.key() in self._keys

    def is_refuted(self, scope: str, question: str, fingerprint: str) -> bool:
        """Whether the relation of these was wrong. As a rule none was, and the question need not be hashed."""
        return len(self._keys) > 0 and relation_of(scope, question, fingerprint).key() in self._keys

    def add(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._keys.put(key, True)


# The semantic hits that feedback can still refer to. Pure.

# A vector, a question that was read whole, and the entry that was served: some 15 MB with entries of 1 kB.
MAX_SERVED = 5_000


@dataclass(slots=True)
class ServedHit:
    route: str
    judged: Judgement
    embedder: str = ""  # the fingerprint of what made the vectors that it was judged by
    has_feedback: bool = False  # a client has said what it thinks of it: that counts once


class ServedHits:
    """The last semantic hits by tenant and request id. A tenant can refer to its own alone."""

    def __init__(self, limit: int = MAX_SERVED) -> None:
        self._hits: BoundedCache[tuple[str, str], ServedHit] = BoundedCache(limit)

    def add(self, tenant: str, request_id: str, served: ServedHit) -> None:
        self._hits.put((tenant, request_id), served)

    def get(self, tenant: str, request_id: str) -> ServedHit | None:
        return self._hits.peek((tenant, request_id))

    def report(self, tenant: str, request_id: str) -> None:
        """Remembers that there was feedback on this hit."""
        served = self._hits.peek((tenant, request_id))
        if served is not None:
            served.has_feedback = True


# A client's word on an answer that another gateway on the store has given: whoever remembers it learns of it.
LOG = logging.getLogger("nearhit.replication")

REPLY_TIMEOUT_S = 1.0  # for the others: they hear within a tenth of it

MAX_CONCURRENT = 16  # questions of this gateway, and likewise of others that it looks up; beyond it nobody is asked


class FeedbackForwarding:
    """`publish` tells all others tenant, request id, verdict and the name of the reply; what they say of that is given
    to `asked`, which looks it up in `apply_feedback`."""

    def __init__(
        self,
        publish: Callable[..., None],
        replies: Replies,
        apply_feedback: Callable[[str, str, str], Awaitable[dict[str, Any] | None]],
    ) -> None:
        self._publish = publish
        self._replies = replies
        self._apply_feedback = apply_feedback
        self._limiter = asyncio.Semaphore(MAX_CONCURRENT)
        self._answers = Background(MAX_CONCURRENT)

    async def request(self, tenant: str, request_id: str, verdict: str) -> dict[str, Any] | None:
        """None: nobody remembers it, or nobody could say in time."""
        if self._limiter.locked():
            return None
        async with self._limiter:
            name = secrets.token_hex(16)
            self._publish(tenant, request_id, verdict, name)
            try:
                answer = await self._replies.wait(name, REPLY_TIMEOUT_S)
            except StoreUnavailable:
                return None
        result: dict[str, Any] | None = None if answer is None else orjson.loads(answer)
        return result

    def asked(self, tenant: str, request_id: str, verdict: str, name: str) -> None:
        """By another gateway. Answered if it is known here."""
        self._answers.start(name, self._answer(tenant, request_id, verdict, name))

    async def close(self) -> None:
        await self._answers.close()

    async def _answer(self, tenant: str, request_id: str, verdict: str, name: str) -> None:
        result = await self._apply_feedback(tenant, request_id, verdict)
        if result is None:
            return
        try:
            await self._replies.reply(name, orjson.dumps(result))
        except StoreUnavailable as error:
            LOG.warning("feedback was heeded, its client is not told", extra={"fields": {"error": str(error)}})
