"""An upstream that is fast and bad attracts no traffic, and gets its share back when it is well again."""

from __future__ import annotations

import pytest

from gateway.upstream import backend
from gateway.upstream.upstream import MAX_COOLDOWN_S
from tests.upstream.simulated_upstreams import FAULTS, Server, World, share

LEARNT = 50  # calls after which the choice has learnt
CALLS = 300
LEAST = 0.5  # of the share that an upstream has which was never bad


@pytest.fixture(autouse=True)
def _retries_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "backoff_s", lambda *_: 0.0)


FAIR: dict[tuple[str, int, float], float] = {}


async def fair_share(name: str, upstreams: int, rate: float) -> float:
    """Return the share of one upstream where none was ever bad."""
    if (name, upstreams, rate) not in FAIR:
        servers = healthy(upstreams)
        await World(servers, 17, rate).run(4 * CALLS)
        FAIR.update({(each.name, upstreams, rate): share(each, CALLS, 4 * CALLS) for each in servers})
    return FAIR[name, upstreams, rate]


def healthy(upstreams: int) -> list[Server]:
    return [Server(f"s{i}", 0.1 + 0.02 * i) for i in range(upstreams)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("upstreams", "rate"), [(2, 2.0), (8, 100.0)])
async def test_a_fast_and_bad_upstream_gets_a_twentieth_at_most_and_its_share_once_it_is_cured(
    fault: str, upstreams: int, rate: float
) -> None:
    for seed, streamed in enumerate((False, True)):
        servers = healthy(upstreams)
        bad = servers[seed % upstreams]
        bad.fault = FAULTS[fault]
        world = World(servers, seed, rate, streamed=streamed)
        await world.run(CALLS)
        got = share(bad, LEARNT, CALLS)
        assert got <= 0.05, (seed, streamed, got)
        bad.fault = None
        world.clock.advance(MAX_COOLDOWN_S)
        await world.run(2 * CALLS)
        again, fair = share(bad, 2 * CALLS, 3 * CALLS), await fair_share(bad.name, upstreams, rate)
        assert again >= LEAST * fair, (seed, streamed, again, fair)
        assert world.statuses[-CALLS:] == [200] * CALLS


@pytest.mark.parametrize("fault", ["401", "empty answer", "429", "500", "cut"])
async def test_an_upstream_that_turns_bad_after_it_was_the_fastest_is_left(fault: str) -> None:
    for seed in range(3):
        servers = [Server("fastest", 0.02), Server("slow", 0.8), Server("slower", 1.0)]
        world = World(servers, seed, 5.0)
        await world.run(CALLS)
        servers[0].fault = FAULTS[fault]
        await world.run(CALLS)
        assert share(servers[0], CALLS + LEARNT, 2 * CALLS) <= 0.05


@pytest.mark.parametrize("fault", ["401", "empty answer", "error in a 200", "429", "500", "cut"])
async def test_an_upstream_that_is_bad_every_other_time_is_left_too(fault: str) -> None:
    for seed in range(3):
        servers = [Server("a"), Server("b"), Server("c")]
        servers[seed].fault, servers[seed].fault_share = FAULTS[fault], 0.5
        world = World(servers, seed, 20.0)
        await world.run(3 * CALLS)
        assert share(servers[seed], CALLS, 3 * CALLS) <= 0.1


@pytest.mark.parametrize("fault", ["401", "empty answer", "400", "500"])
async def test_a_fault_of_all_ejects_never_more_than_half(fault: str) -> None:
    servers = [Server(f"s{i}", 0.1, FAULTS[fault]) for i in range(4)]
    world = World(servers, 1, 20.0)
    await world.run(CALLS)
    for server in servers:
        server.fault = None
    world.clock.advance(MAX_COOLDOWN_S)
    await world.run(2 * CALLS)
    assert all(share(server, 2 * CALLS, 3 * CALLS) > 0.1 for server in servers)
    assert world.statuses[-CALLS:] == [200] * CALLS


@pytest.mark.parametrize("rate", [2.0, 20.0, 100.0])
async def test_a_slow_and_healthy_upstream_gets_less_and_something(rate: float) -> None:
    for seed in range(3):
        servers = [Server("fast", 0.1), Server("slow", 0.4)]
        world = World(servers, seed, rate)
        await world.run(2 * CALLS)
        fast, slow = (share(server, LEARNT, 2 * CALLS) for server in servers)
        assert fast > slow > 0.0
        assert world.statuses == [200] * 2 * CALLS


async def test_clients_that_ask_badly_now_and_then_cost_no_upstream_its_share() -> None:
    servers = [Server(name, 0.1, FAULTS["400"], 0.1) for name in ("a", "b", "c")]
    world = World(servers, 3, 20.0)
    await world.run(3 * CALLS)
    shares = [share(server, LEARNT, 3 * CALLS) for server in servers]
    assert min(shares) > 0.2, shares
