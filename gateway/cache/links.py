"""Links: questions whose fresh answer equalled the stored answer to another question.

A link lets the next request with this question get the linked entry, whatever their score. It depends on no model.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.bounded_cache import BoundedCache
from gateway.cache.feedback import digest_of
from gateway.long_questions import fold_spaces
from gateway.ports import MAX_LINKS

# A question by chance gets the same short answer as another one, such as "Yes". The two are linked only if the verifier
# or the route's labels gave the pair at least this probability.
LEAST_PROBABILITY = 0.1

HALF = 16  # bytes of each digest in memory; an entry of another scope is never served, whatever the key says

_VALUE = struct.Struct("<32sf")


@dataclass(frozen=True, slots=True)
class Link:
    """A question in a scope, and the entry that answers it, too."""

    scope: str  # hex
    asked: str  # hex, digest of the question
    fingerprint: str  # hex, of the entry
    similarity: float  # of the two questions when they were linked, in [0, 1]

    def key(self) -> str:
        """Return the link as text, for the store and for other gateways."""
        return f"{self.scope}:{self.asked}:{self.fingerprint}:{self.similarity:.4f}"


def link_of(scope: str, question: str, fingerprint: str, similarity: float) -> Link:
    return Link(scope, _digest(question), fingerprint, similarity)


class Links:
    """The links in force. The least recently used ones are dropped beyond the bound."""

    def __init__(self, limit: int = MAX_LINKS) -> None:
        self._links: BoundedCache[bytes, bytes] = BoundedCache(limit)

    def __len__(self) -> int:
        return len(self._links)

    def add(self, keys: Iterable[str]) -> None:
        """Add links by their keys. A question has one link, the latest. Unreadable keys are left out."""
        for key in keys:
            try:
                scope, asked, fingerprint, similarity = key.split(":")
                self._links.put(_short(scope, asked), _VALUE.pack(bytes.fromhex(fingerprint), float(similarity)))
            except (ValueError, struct.error):  # of another version
                continue

    def find(self, scope: str, question: str) -> Link | None:
        """Return the link of a question. While there is none at all, the question is not hashed."""
        if not len(self._links):
            return None
        asked = _digest(question)
        value = self._links.get(_short(scope, asked))
        if value is None:
            return None
        fingerprint, similarity = _VALUE.unpack(value)
        return Link(scope, asked, fingerprint.hex(), similarity)

    def entries_of(self, question: str) -> list[str]:
        """Return the fingerprints of the entries that are linked to this question, in all scopes. It scans all links,
        so it is for explanations and not for requests."""
        asked = bytes.fromhex(_digest(question))[:HALF]
        values = [value for key, value in zip(self._links, self._links.values(), strict=True) if key[HALF:] == asked]
        return [_VALUE.unpack(value)[0].hex() for value in values]


def _digest(question: str) -> str:
    return digest_of(fold_spaces(question))


def _short(scope: str, asked: str) -> bytes:
    return bytes.fromhex(scope)[:HALF] + bytes.fromhex(asked)[:HALF]
