"""Links: questions whose fresh answer equalled the stored answer to another question.

A link lets the next request with this question get the linked entry, whatever their score. It depends on no model.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Set
from dataclasses import dataclass

from gateway.bounded_cache import BoundedCache
from gateway.cache.feedback import digest_of
from gateway.ports import MAX_LINKS
from gateway.text_forms import fold_spaces

# A question by chance gets the same short answer as another one, such as "Yes". The two are linked only if the verifier
# or the route's labels gave the pair at least this probability.
LEAST_PROBABILITY = 0.1

MAX_PER_QUESTION = 4  # entries: the latest ones

HALF = 16  # bytes of each digest in memory; an entry of another scope is never served, whatever the key says

_ENTRY = struct.Struct("<32sf")  # fingerprint and similarity


@dataclass(frozen=True, slots=True)
class Link:
    """A question in a scope, and the entry that answers it, too."""

    scope: str  # hex
    question_digest: str  # hex, digest of the question
    fingerprint: str  # hex, of the entry
    similarity: float  # of the two questions when they were linked, in [0, 1]

    def key(self) -> str:
        """Return the link as text, for the store and for other gateways."""
        return f"{self.scope}:{self.question_digest}:{self.fingerprint}:{self.similarity:.4f}"


def link_of(scope: str, question: str, fingerprint: str, similarity: float) -> Link:
    return Link(scope, _digest(question), fingerprint, similarity)


class Links:
    """The links in force. Beyond `limit` questions the least recently asked ones are dropped."""

    def __init__(self, limit: int = MAX_LINKS) -> None:
        self._links: BoundedCache[bytes, bytes] = BoundedCache(limit)

    def __len__(self) -> int:
        return len(self._links)

    def add(self, keys: Iterable[str]) -> None:
        """Add links by their keys. Unreadable keys are left out."""
        for key in keys:
            try:
                scope, question_digest, fingerprint, similarity = key.split(":")
                question = _short(scope, question_digest)
                added = _ENTRY.pack(bytes.fromhex(fingerprint), float(similarity))
            except (ValueError, struct.error):  # of another version
                continue
            others = [entry for entry in _split(self._links.peek(question)) if entry[:32] != added[:32]]
            self._links.put(question, b"".join([added, *others[: MAX_PER_QUESTION - 1]]))

    def forget(self, fingerprints: Set[str], questions: Set[str]) -> None:
        """Drop the links to these entries, and those of the questions with these digests. It scans all links."""
        gone = {bytes.fromhex(name) for name in fingerprints}
        digests = {bytes.fromhex(digest)[:HALF] for digest in questions}
        for key in list(self._links):
            value = self._links.peek(key)
            others = [] if key[HALF:] in digests else [entry for entry in _split(value) if entry[:32] not in gone]
            if not others:
                self._links.pop(key)
            elif len(others) * _ENTRY.size != len(value or b""):
                self._links.put(key, b"".join(others))

    def find(self, scope: str, question: str) -> list[Link]:
        """Return the links of a question, the latest first. While there are none at all, it is not hashed."""
        if not len(self._links):
            return []
        question_digest = _digest(question)
        entries = map(_ENTRY.unpack, _split(self._links.get(_short(scope, question_digest))))
        return [Link(scope, question_digest, fingerprint.hex(), similarity) for fingerprint, similarity in entries]

    def entries_of(self, question: str) -> list[str]:
        """Return the fingerprints of the entries that are linked to this question, in all scopes. It scans all links,
        so it is for explanations and not for requests."""
        question_half = bytes.fromhex(_digest(question))[:HALF]
        values = [
            value for key, value in zip(self._links, self._links.values(), strict=True) if key[HALF:] == question_half
        ]
        return [entry[:32].hex() for value in values for entry in _split(value)]


def _split(value: bytes | None) -> list[bytes]:
    return [] if value is None else [value[at : at + _ENTRY.size] for at in range(0, len(value), _ENTRY.size)]


def question_digests(question: str) -> tuple[str, str]:
    """Return the digests of a question, as counterexamples and as links have it."""
    return digest_of(question), _digest(question)


def _digest(question: str) -> str:
    return digest_of(fold_spaces(question))


def _short(scope: str, question: str) -> bytes:
    return bytes.fromhex(scope)[:HALF] + bytes.fromhex(question)[:HALF]
