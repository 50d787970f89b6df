"""Find what a gateway has learned of two prompts: links, counterexamples and decoys of a stored answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.cache.decoys import Decoys
from gateway.cache.feedback import Counterexamples, ServedHits
from gateway.cache.judgement import is_verbatim
from gateway.cache.links import Links
from gateway.entries import Entry, Vector
from gateway.errors import StoreUnavailable
from gateway.ports import NearbyStore, VectorIndex

SAME_QUESTION = 0.999  # similarity of a question with itself, but for rounding

MAX_READ = 50  # entries read from the store for one explanation


@dataclass(frozen=True, slots=True)
class AskedScope:
    """A scope in which the new question has an answer to be compared with.

    `entry` answers the stored question. The scope has `entries` entries. `client` got the answer, as
    `Judgement.client`, and is `""` if no client did lately. `others` counts further scopes that have the stored
    question.
    """

    entry: Entry
    entries: int
    client: str = ""
    others: int = 0


@dataclass(frozen=True, slots=True)
class PairKnowledge:
    """The links, counterexamples and decoys in force, the last hits, the store with their entries, and the index."""

    links: Links
    counterexamples: Counterexamples
    decoys: Decoys
    served: ServedHits
    store: NearbyStore
    index: VectorIndex

    async def has_entry(self, vector: Vector, stored: str, route: str, accepts: Callable[[Entry], bool]) -> bool:
        """Return whether an entry of the route with the question `stored` fulfils a condition, in any scope. `vector`
        is that of the question."""
        near = await self.index.near(vector, SAME_QUESTION)
        return await self._entry(near, stored, lambda entry: entry.route == route and accepts(entry)) is not None

    async def asked_scope(
        self, asked: str, asked_vector: Vector, stored: str, stored_vector: Vector, route: str
    ) -> AskedScope | None:
        """Return the scope of the route to explain, or None if no scope of the route has the stored question.

        It is the one in which this answer was served last for this question. Else it is one with a link or a decoy for
        the question, and else the one with the newest entry.
        """
        near = await self.index.near(stored_vector, SAME_QUESTION)
        entries = await self._entries(near, stored, lambda entry: entry.route == route)
        if not entries:
            return None
        names = {entry.fingerprint for entry in entries}
        hit = self.served.latest(
            lambda hit: hit.judged.entry.fingerprint in names and is_verbatim(hit.judged.question, asked)
        )
        served = set[str]() if hit is None else {hit.judged.entry.fingerprint}
        linked, repelling = set(self.links.entries_of(asked)), set(self.decoys.entries_near(asked_vector))

        def worth(entry: Entry) -> tuple[bool, bool, bool, float]:
            name = entry.fingerprint
            return name in served, name in linked, name in repelling, entry.created

        entry = max(entries, key=worth)
        client = hit.judged.client if hit is not None and entry.fingerprint in served else ""
        others = len({each.scope for each in entries} - {entry.scope})
        return AskedScope(entry, self.index.count(entry.scope), client, others)

    async def linked_entry(self, asked: str, stored: str, scope: str | None) -> Entry | None:
        """Return the entry with the question `stored` that a link names for `asked`. It has this `scope`, or any if
        that is None."""
        entry = await self._entry(
            self.links.entries_of(asked), stored, lambda entry: scope is None or entry.scope == scope
        )
        if entry is None or self.counterexamples.is_refuted(entry.scope, asked, entry.fingerprint):
            return None
        return entry

    async def repelling_entry(self, vector: Vector, stored: str) -> Entry | None:
        """Return the entry with the question `stored` and a decoy near `vector`, in any scope."""
        return await self._entry(self.decoys.entries_near(vector), stored)

    async def _entry(
        self, fingerprints: Iterable[str], stored: str, accepts: Callable[[Entry], bool] = lambda _: True
    ) -> Entry | None:
        return next(iter(await self._entries(fingerprints, stored, accepts, most=1)), None)

    async def _entries(
        self, fingerprints: Iterable[str], stored: str, accepts: Callable[[Entry], bool], most: int = MAX_READ
    ) -> list[Entry]:
        """Return at most `most` entries with the question `stored`, of the first `MAX_READ` fingerprints."""
        entries = list[Entry]()
        try:
            for fingerprint in list(fingerprints)[:MAX_READ]:
                entry = await self.store.get(fingerprint)
                if entry is not None and is_verbatim(entry.question or "", stored) and accepts(entry):
                    entries.append(entry)
                    if len(entries) == most:
                        break
        except StoreUnavailable:  # the explanation then lacks this, as a lookup would
            return entries
        return entries
