"""Find what a gateway has learned of two prompts: links, counterexamples and decoys of a stored answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.cache.decoys import Decoys
from gateway.cache.feedback import Counterexamples
from gateway.cache.judgement import is_verbatim
from gateway.cache.links import Links
from gateway.errors import StoreUnavailable
from gateway.messages import Entry, Vector
from gateway.ports import NearbyStore, VectorIndex
from gateway.trust import Asker

SAME_QUESTION = 0.999  # similarity of a question with itself, but for rounding

MAX_READ = 50  # entries read from the store for one explanation


@dataclass(frozen=True, slots=True)
class PairKnowledge:
    """The links, counterexamples and decoys in force, the store with their entries, and the index."""

    links: Links
    counterexamples: Counterexamples
    decoys: Decoys
    store: NearbyStore
    index: VectorIndex

    async def confirmed_entry(self, vector: Vector, stored: str, route: str, client: Asker) -> Entry | None:
        """Return an entry of the route with the question `stored` that `client` may have, in any scope. `vector`: of
        the question."""
        return await self._entry(
            await self.index.near(vector, SAME_QUESTION),
            stored,
            lambda entry: entry.route == route and client.may_have(entry),
        )

    async def linked_entry(self, asked: str, stored: str) -> Entry | None:
        """Return the entry with the question `stored` that a link names for `asked`, in any scope."""
        entry = await self._entry(self.links.entries_of(asked), stored)
        if entry is None or self.counterexamples.is_refuted(entry.scope, asked, entry.fingerprint):
            return None
        return entry

    async def repelling_entry(self, vector: Vector, stored: str) -> Entry | None:
        """Return the entry with the question `stored` and a decoy near `vector`, in any scope."""
        return await self._entry(self.decoys.entries_near(vector), stored)

    async def _entry(
        self, fingerprints: Iterable[str], stored: str, accepts: Callable[[Entry], bool] = lambda _: True
    ) -> Entry | None:
        try:
            for fingerprint in list(fingerprints)[:MAX_READ]:
                entry = await self.store.get(fingerprint)
                if entry is not None and is_verbatim(entry.question or "", stored) and accepts(entry):
                    return entry
        except StoreUnavailable:  # the explanation then lacks this, as a lookup would
            return None
        return None
