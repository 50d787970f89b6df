"""Whatever two gateways do to one store, and however late each hears of the other: in the end no index lacks one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.cache.decoys import Decoys
from gateway.cache.feedback import Counterexamples
from gateway.cache.links import Links
from gateway.features.replicas.replication import Replication
from gateway.observability.telemetry import Telemetry
from gateway.ports import ChangeKind, StoreChange
from tests.features.replicas.test_stream_consumer import NOW, ListLog
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import DIMENSION, entry_of, hexed, vector_of
from tests.fixtures.fakes import ExactIndex, MemoryStore

NAMES = ("a",)  # one is enough: what matters is the order of what happens to it
STEPS = st.lists(
    st.tuples(st.sampled_from(("put", "delete", "finish", "follow", "trim")), st.booleans(), st.sampled_from(NAMES)),
    max_size=40,
)


class One:
    """A gateway as far as it stores and follows. What it does takes two steps, with others' in between: `todo` has the
    second ones."""

    def __init__(self, name: str, store: MemoryStore, log: ListLog) -> None:
        self.name, self.store, self.log = name, store, log
        self.index = ExactIndex(DIMENSION, max_entries=100)
        self.todo: list[Callable[[], Coroutine[Any, Any, object]]] = []
        space = SimpleNamespace(store=store, backing_store=store, index=self.index, decoys=Decoys())
        self.following = Replication(
            log,
            SimpleNamespace(all=(space,), with_local_index=(space,)),  # type: ignore[arg-type]
            SimpleNamespace(forget=lambda _: None),  # type: ignore[arg-type]
            Counterexamples(),
            Links(),
            Telemetry(),
            store._clock,
            gateway=name,
            reread=nothing,
            on_removal=lambda: None,
        )

    async def put(self, name: str) -> None:
        """As `Admit` does it: first into the store, then into the index."""
        await self.store.put(entry_of(name), vector_of(NAMES.index(name)))
        self.log.made.append(StoreChange(ChangeKind.VECTORS, self.name, NOW, hexed(name)))
        self.todo.append(lambda: self.index.add(hexed(name), "scope", vector_of(NAMES.index(name))))

    async def delete(self, name: str) -> None:
        """As `Evictor` does it: first out of the index, then out of the store."""
        await self.index.remove([hexed(name)])

        async def out_of_the_store() -> None:
            await self.store.delete([hexed(name)])
            self.log.made.append(StoreChange(ChangeKind.VECTORS, self.name, NOW, hexed(name)))

        self.todo.append(out_of_the_store)

    async def finish(self, _: str = "") -> None:
        if self.todo:
            await self.todo.pop(0)()

    async def follow(self, _: str = "") -> bool:
        page = await self.following.consumer.step()
        while self.following.position is None:  # it is being compared
            await asyncio.sleep(0)
        return page.more

    async def trim(self, _: str = "") -> None:
        self.log.first = len(self.log.made)


async def nothing() -> None:
    return None


@settings(max_examples=100, deadline=None)
@given(STEPS)
@example([("delete", False, "a"), ("put", True, "a"), ("follow", False, "a")])  # lost where the index goes last
def test_in_the_end_no_index_lacks_what_the_store_has(steps: list[tuple[str, bool, str]]) -> None:
    asyncio.run(played(steps))


async def played(steps: list[tuple[str, bool, str]]) -> None:
    store, log = MemoryStore(FakeClock()), ListLog()
    both = {first: One(str(first), store, log) for first in (True, False)}
    for one in both.values():
        await one.following.consumer.start_from_end()
    for step, first, name in steps:
        await getattr(both[first], step)(name)
    for one in both.values():
        while one.todo:
            await one.finish()
    for one in both.values():
        while await one.follow():
            pass
    stored = {name async for name, _ in store.fingerprints()}
    for one in both.values():
        assert stored <= set(await one.index.fingerprints())
