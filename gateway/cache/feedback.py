"""Client feedback on semantic hits: the hits it may refer to, and counterexamples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from gateway.bounded_cache import BoundedCache
from gateway.ports import MAX_COUNTEREXAMPLES, Judgement


@dataclass(slots=True)
class Relation:
    """The pair of a question in a scope and the entry that was served for it."""

    scope: str  # hex
    question_digest: str  # hex SHA-256 of the question; its text is not needed again
    fingerprint: str  # hex, of the entry that was served

    def key(self) -> str:
        return f"{self.scope}:{self.question_digest}:{self.fingerprint}"


def digest_of(question: str) -> str:
    """Return the digest of a question in a relation."""
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()


def relation_of(scope: str, question: str, fingerprint: str) -> Relation:
    return Relation(scope, digest_of(question), fingerprint)


def relation_between(judged: Judgement) -> Relation:
    """Return the relation of the question and the stored answer, as feedback names it."""
    return relation_of(judged.entry.scope, judged.question, judged.entry.fingerprint)


class Counterexamples:
    """Wrong relations. They are never served again, at any similarity."""

    def __init__(self, limit: int = MAX_COUNTEREXAMPLES) -> None:
        self._keys: BoundedCache[str, bool] = BoundedCache(limit)
        self._in_use = False  # whether there ever was a counterexample: most gateways need not look for any

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, relation: Relation) -> bool:
        return relation.key() in self._keys

    def is_refuted(self, scope: str, question: str, fingerprint: str) -> bool:
        """Return whether this relation was wrong. While there is no counterexample, the question is not hashed."""
        return self._in_use and relation_of(scope, question, fingerprint).key() in self._keys

    def add(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._keys.put(key, True)
            self._in_use = True

    def forget(self, fingerprints: Set[str], questions: Set[str]) -> None:
        """Drop the relations with these entries, and those of the questions with these digests."""
        for key in list(self._keys):
            if is_related(key, fingerprints, questions):
                self._keys.pop(key)


def is_related(key: str, fingerprints: Set[str], questions: Set[str]) -> bool:
    """Return whether the key of a relation or a link has one of these entries or digests of questions."""
    _, question, fingerprint, *_ = (*key.split(":"), "", "", "")
    return fingerprint in fingerprints or question in questions


# The semantic hits that feedback can still refer to.

# Each keeps a vector, a question and the entry: some 15 MB with entries of 1 kB.
MAX_SERVED = 5_000


@dataclass(slots=True)
class ServedHit:
    route: str
    judged: Judgement
    embedder: str = ""  # the fingerprint of the embedder whose vectors it was judged by
    has_feedback: bool = False  # a client gave feedback on it, which counts once


class ServedHits:
    """The last semantic hits, by tenant and request id. A tenant can refer to its own hits only."""

    def __init__(self, limit: int = MAX_SERVED) -> None:
        self._hits: BoundedCache[tuple[str, str], ServedHit] = BoundedCache(limit)

    def add(self, tenant: str, request_id: str, served: ServedHit) -> None:
        self._hits.put((tenant, request_id), served)

    def get(self, tenant: str, request_id: str) -> ServedHit | None:
        return self._hits.peek((tenant, request_id))

    def latest(self, is_of: Callable[[ServedHit], bool]) -> ServedHit | None:
        """Return the latest hit for which `is_of` is true. It scans all hits, so it is for explanations and not for
        requests."""
        return next(filter(is_of, reversed(list(self._hits.values()))), None)

    def forget(self, is_erased: Callable[[Judgement], bool]) -> None:
        """Drop the hits for which `is_erased` is true."""
        for key in list(self._hits):
            served = self._hits.peek(key)
            if served is not None and is_erased(served.judged):
                self._hits.pop(key)

    def report(self, tenant: str, request_id: str) -> None:
        """Remember that this hit has feedback."""
        served = self._hits.peek((tenant, request_id))
        if served is not None:
            served.has_feedback = True
