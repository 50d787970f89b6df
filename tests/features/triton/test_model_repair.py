"""When a dead model is reloaded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.circuit_breaker import CircuitBreaker
from gateway.features.triton.model_health import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    RELAPSE_S,
    STABLE_S,
    Reload,
    Repairs,
    check_interval_s,
)


@given(st.floats(0, 1, exclude_max=True))
def test_the_next_look_comes_before_a_breaker_would_let_a_client_find_out(chance: float) -> None:
    breaker = CircuitBreaker(5, 5.0, 60.0)
    breaker.eject(0.0)
    assert 3.0 <= check_interval_s(chance) <= 5.0
    assert not breaker.ready(check_interval_s(chance) - 1e-6)


@given(st.lists(st.tuples(st.floats(0, 400), st.sampled_from(Reload)), max_size=50))
def test_pauses_between_reloads_grow_and_never_exceed_the_longest(steps: list[tuple[float, Reload]]) -> None:
    repairs, now, last = Repairs(), 0.0, None
    for later, outcome in steps:
        now += later
        if not repairs.is_due(now):
            assert last is not None
            assert now - last < MAX_PAUSE_S
            continue
        assert last is None or now - last >= FIRST_PAUSE_S
        repairs.record_reload(outcome, now)
        last = now


def test_failing_reloads_come_more_rarely() -> None:
    repairs, now, pauses = Repairs(), 0.0, []
    for _ in range(8):
        repairs.record_reload(Reload.FAILED, now)
        begun = now
        while not repairs.is_due(now):
            now += 1.0
        pauses.append(now - begun)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    repairs.record_reload(Reload.RECOVERED, now + MAX_PAUSE_S + STABLE_S + 1)
    assert repairs.is_due(now + MAX_PAUSE_S + STABLE_S + 1 + FIRST_PAUSE_S), "after a calm time they begin anew"


def test_a_server_that_refuses_is_asked_again_after_the_longest_pause() -> None:
    repairs = Repairs()
    repairs.record_reload(Reload.REFUSED, 0.0)
    assert not repairs.is_due(MAX_PAUSE_S - 1)
    assert repairs.is_due(MAX_PAUSE_S)


def test_who_fails_again_soon_is_not_believed_by_a_probe() -> None:
    repairs = Repairs()
    assert repairs.trusts_probe(0.0)
    repairs.on_recovery(0.0)
    assert not repairs.trusts_probe(RELAPSE_S)
    assert repairs.trusts_probe(RELAPSE_S + 1)
