"""What the entries in process promise: bounded memory, the hottest ones stay, other gateways' removals take effect."""

from __future__ import annotations

import pytest

from gateway.cache.bans import Ban, BanConditions, Bans
from gateway.cache.memory_cache import TieredStore
from gateway.errors import StoreUnavailable
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import entry_of, hexed
from tests.fixtures.fakes import MemoryStore

SIZE = entry_of("a").size


def front_of(entries: float, *, max_age_s: float | None = None) -> tuple[TieredStore, MemoryStore, FakeClock]:
    """With room for so many entries of the usual size."""
    clock = FakeClock()
    behind = MemoryStore(clock)
    return TieredStore(behind, max_bytes=int(entries * SIZE), max_age_s=max_age_s, clock=clock), behind, clock


async def test_the_bound_on_bytes_holds_after_every_put() -> None:
    front, _, _ = front_of(12)
    for i in range(60):
        await front.put(entry_of(f"n{i}", payload=(b"x" * (i * 7 % 90),)), None)
        assert front.bytes <= 12 * SIZE
        assert front.bytes == sum(front.peek(hexed(f"n{j}")).size for j in range(i + 1) if front.peek(hexed(f"n{j}")))
    assert len(front) >= 10


async def test_the_least_recently_used_entry_makes_room() -> None:
    front, _, _ = front_of(10)
    for i in range(10):
        await front.put(entry_of(str(i)), None)
    assert await front.get(hexed("0")) is not None  # used: "1" is the oldest now
    await front.put(entry_of("x"), None)
    assert front.peek(hexed("1")) is None
    assert front.peek(hexed("0")) is not None
    assert await front.get(hexed("1")) is not None, "what made room is still in the store"


async def test_one_huge_entry_does_not_push_out_what_is_hot() -> None:
    front, behind, _ = front_of(12)
    for i in range(10):
        await front.put(entry_of(str(i)), None)
    huge = entry_of("huge", payload=(b"x" * 5 * SIZE,))
    await front.put(huge, None)
    assert len(front) == 10
    assert front.peek(huge.fingerprint) is None
    assert await front.get(huge.fingerprint) == huge, "it is served from the store"
    assert len(front) == 10
    assert behind.gets == [huge.fingerprint]


async def test_a_huge_entry_takes_the_place_of_its_small_predecessor() -> None:
    """The old answer must not be served once it was replaced, also when the new one is too large to be kept here."""
    front, _, _ = front_of(12)
    await front.put(entry_of("a"), None)
    huge = entry_of("a", payload=(b"x" * 5 * SIZE,))
    await front.put(huge, None)
    assert await front.get(hexed("a")) == huge
    assert front.bytes == 0


async def test_a_hot_entry_is_answered_without_the_store() -> None:
    front, behind, _ = front_of(12)
    entry = entry_of("a")
    await front.put(entry, None)
    behind.down = True
    assert await front.get(entry.fingerprint) == entry
    assert behind.gets == []


async def test_what_another_gateway_removed_is_gone_after_max_age() -> None:
    front, behind, clock = front_of(12, max_age_s=5.0)
    await front.put(entry_of("a"), None)
    await behind.delete([hexed("a")])
    clock.advance(5.0)
    assert await front.get(hexed("a")) is not None
    clock.advance(0.1)
    assert front.peek(hexed("a")) is None
    assert await front.get(hexed("a")) is None
    assert front.bytes == 0


async def test_max_age_ignores_the_wall_clock() -> None:
    front, _, clock = front_of(12, max_age_s=5.0)
    await front.put(entry_of("a"), None)
    clock.set_wall(clock.wall() - 3600)
    clock.advance(5.1)
    assert front.peek(hexed("a")) is None


async def test_a_store_that_is_our_own_is_not_asked_again() -> None:
    front, behind, clock = front_of(12)
    await front.put(entry_of("a", lifetime_s=1e9), None)
    clock.advance(1e6)
    assert await front.get(hexed("a")) is not None
    assert behind.gets == []


async def test_a_deletion_is_in_force_here_even_when_the_store_is_down() -> None:
    front, behind, _ = front_of(12)
    await front.put(entry_of("a"), None)
    behind.down = True
    with pytest.raises(StoreUnavailable):
        await front.delete([hexed("a")])
    assert front.peek(hexed("a")) is None


async def test_an_answer_made_while_the_store_is_down_is_served_from_here() -> None:
    front, behind, _ = front_of(12)
    behind.down = True
    with pytest.raises(StoreUnavailable):
        await front.put(entry_of("a"), None)
    assert await front.get(hexed("a")) is not None
    with pytest.raises(StoreUnavailable):
        await front.get(hexed("b"))


async def test_what_a_ban_covers_is_neither_returned_nor_kept_nor_passed_on() -> None:
    front, behind, clock = front_of(12)
    removed, kept = entry_of("a", created=clock.wall()), entry_of("b", created=clock.wall(), tags=())
    for entry in (removed, kept):
        await front.put(entry, None)
    ban = Ban("b", clock.wall(), clock.wall() + 100, BanConditions(tags=frozenset({"docs"})))
    front.bans.add(ban, clock.wall())
    assert front.peek(removed.fingerprint) is None
    assert await front.get(removed.fingerprint) is None, "though the store still has it"
    assert front.peek(kept.fingerprint) is kept
    await behind.delete([removed.fingerprint])
    await front.put(removed, None)
    assert await behind.get(removed.fingerprint) is None
    assert len(front) == 1


async def test_a_sweep_frees_what_nobody_asks_for() -> None:
    front, _, clock = front_of(12)
    for i in range(10):
        await front.put(entry_of(str(i), created=clock.wall(), route=f"r{i % 2}"), None)
    front.bans.add(Ban("b", clock.wall(), clock.wall() + 100, BanConditions(route="r1")), clock.wall())
    assert await front.sweep() == 5
    assert len(front) == 5
    assert front.bytes == 5 * SIZE


async def test_before_the_removals_are_known_nothing_of_the_store_is_served() -> None:
    clock = FakeClock()
    behind = MemoryStore(clock)
    await behind.put(entry_of("a"), None)
    front = TieredStore(behind, max_bytes=10**6, max_age_s=None, clock=clock, bans=Bans())
    assert await front.get(hexed("a")) is None
    await front.put(entry_of("b"), None)
    assert await front.get(hexed("b")) is not None, "what was fetched since then is known to be wanted"
    front.bans.stored([], clock.wall())
    assert await front.get(hexed("a")) is not None
