"""Add stored entries to the index, unless a removal came in between."""

from __future__ import annotations

from gateway.entries import Entry, Vector
from gateway.ports import NearbyStore, VectorIndex


async def is_allowed(store: NearbyStore, entry: Entry, vector: Vector | None) -> bool:
    """Return whether a stored entry may be found. A removal during the put did not find the entry in the store but
    applies to it, so delete the entry then."""
    if store.banned(entry, vector):
        await store.delete([entry.fingerprint])
        return False
    return True


async def add_to_index(
    store: NearbyStore, index: VectorIndex, entry: Entry, vector: Vector | None, *, indexed: bool = False
) -> bool:
    """Add a stored entry to the index; return whether it may be found (`is_allowed`). With `indexed`, the index
    has the vector already."""
    if not await is_allowed(store, entry, vector):
        return False
    if vector is not None and not indexed:
        await index.add(entry.fingerprint, entry.scope, vector, entry.expires)
    return True
