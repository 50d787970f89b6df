"""Links: questions whose fresh answer equalled the stored answer to another question.

A link lets the next request with this question get the linked entry, whatever their score. It depends on no model.

A turn is a question that a semantic hit has answered, with the entry that it served. It serves nothing: the next turn
of the conversation may go on in the scope of that entry (`gateway.features.conversations`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Set
from dataclasses import dataclass

from gateway.bounded_cache import BoundedCache
from gateway.cache.feedback import digest_of
from gateway.ports import MAX_LINKS, MAX_TURNS
from gateway.text_forms import fold_spaces

# A question by chance gets the same short answer as another one, such as "Yes". The two are linked only if the verifier
# or the route's labels gave the pair at least this probability.
LEAST_PROBABILITY = 0.1

MAX_PER_QUESTION = 4  # entries: the latest ones

HALF = 16  # bytes of each digest in memory; an entry of another scope is never served, whatever the key says

_ENTRY = struct.Struct("<32sf")  # fingerprint and similarity

TURN = "turn"  # stands in the key of a turn in place of the similarity


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


def turn_key(scope: str, question: str, fingerprint: str) -> str:
    """Return the key of a turn. `scope` is the digest of all before it and of its answer, 64 hex digits."""
    return f"{scope}:{_digest(question)}:{fingerprint}:{TURN}"


def link_of(scope: str, question: str, fingerprint: str, similarity: float) -> Link:
    return Link(scope, _digest(question), fingerprint, similarity)


class Links:
    """The links and the turns in force. Beyond `limit` questions the least recently asked ones are dropped, and beyond
    `max_turns` the turns that were used least recently."""

    def __init__(self, limit: int = MAX_LINKS, max_turns: int = MAX_TURNS) -> None:
        self._links: BoundedCache[bytes, bytes] = BoundedCache(limit)
        self._turns: BoundedCache[bytes, bytes] = BoundedCache(max_turns)
        self.has_turns = False  # a plain value, since each miss reads it

    def __len__(self) -> int:
        return len(self._links)

    def add(self, keys: Iterable[str]) -> None:
        """Add links and turns by their keys. Unreadable keys are left out."""
        for key in keys:
            try:
                scope, question_digest, fingerprint, similarity = key.split(":")
                question = _short(scope, question_digest)
                if similarity == TURN:
                    self._turns.put(question, bytes.fromhex(fingerprint))
                    self.has_turns = True
                    continue
                added = _ENTRY.pack(bytes.fromhex(fingerprint), float(similarity))
            except (ValueError, struct.error):  # of another version
                continue
            others = [entry for entry in _split(self._links.peek(question)) if entry[:32] != added[:32]]
            self._links.put(question, b"".join([added, *others[: MAX_PER_QUESTION - 1]]))

    def forget(self, fingerprints: Set[str], questions: Set[str]) -> None:
        """Drop the links and turns of these entries, and those of the questions with these digests. It scans all."""
        gone = {bytes.fromhex(name) for name in fingerprints}
        digests = {bytes.fromhex(digest)[:HALF] for digest in questions}
        for key in list(self._links):
            value = self._links.peek(key)
            others = [] if key[HALF:] in digests else [entry for entry in _split(value) if entry[:32] not in gone]
            if not others:
                self._links.pop(key)
            elif len(others) * _ENTRY.size != len(value or b""):
                self._links.put(key, b"".join(others))
        for key in list(self._turns):
            if key[HALF:] in digests or self._turns.peek(key) in gone:
                self._turns.pop(key)
        self.has_turns = len(self._turns) > 0

    def is_new_turn(self, key: str) -> bool:
        """Return whether a turn is not known, or with another entry."""
        scope, question_digest, fingerprint, _ = key.split(":")
        return self._turns.peek(_short(scope, question_digest)) != bytes.fromhex(fingerprint)

    def turn(self, scope: str, question: str) -> str:
        """Return the fingerprint of the entry that answered a turn, or an empty text."""
        fingerprint = self._turns.get(_short(scope, _digest(question)))
        return "" if fingerprint is None else fingerprint.hex()

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
