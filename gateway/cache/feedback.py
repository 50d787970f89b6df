"""What clients said of semantic hits, and what must not be served again because of it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.bounded_cache import BoundedCache
from gateway.ports import MAX_COUNTEREXAMPLES


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

    def refute(self, scope: str, question: str, fingerprint: str) -> bool:
        """Whether the relation of these was wrong. As a rule none was, and the question need not be hashed."""
        return len(self._keys) > 0 and relation_of(scope, question, fingerprint).key() in self._keys

    def add(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._keys.put(key, True)
