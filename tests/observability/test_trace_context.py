"""W3C Trace Context, section by section; and which traces are drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.observability.access_log import LogShares
from gateway.outcomes import Verdict
from gateway.tracing import LOW_BITS, inject_trace, metadata_of, parent_of, sampling_limit, traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def parent(value: str, *states: str) -> object:
    return parent_of(CIMultiDict([("Traceparent", value), *(("tracestate", state) for state in states)]))


def test_a_parent_is_read_with_its_state_of_several_lines() -> None:
    found = parent_of(CIMultiDict([("traceparent", GOOD), ("tracestate", "a=1"), ("TraceState", "b=2")]))
    assert found is not None
    assert (found.trace_id, found.span_id, found.sampled, found.state) == (TRACE, SPAN, True, "a=1,b=2")
    assert parent_of({}) is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        GOOD.upper(),
        GOOD[:-1],
        GOOD + "-more",  # of version 00, which has nothing more
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
    ],
)
def test_a_parent_that_is_none_begins_a_new_trace_without_its_state(value: str) -> None:
    assert parent(value, "a=1") is None


def test_of_a_later_version_the_known_part_is_read() -> None:
    assert parent(f"cc-{TRACE}-{SPAN}-03-what-the-future-brings") is not None


@pytest.mark.parametrize("state", ["a=" + "x" * 512, "a=\u00e9", "a=1\n"])
def test_a_state_that_cannot_be_carried_is_dropped(state: str) -> None:
    found = parent_of({"traceparent": GOOD, "tracestate": state})
    assert found is not None and found.state in ("", "a=1")


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_read_alike(trace: int, span: int, sampled: bool) -> None:
    found = parent_of({"traceparent": traceparent(f"{trace:032x}", f"{span:016x}", sampled=sampled)})
    assert found is not None
    assert (int(found.trace_id, 16), int(found.span_id, 16), found.sampled) == (trace, span, sampled)


def test_headers_go_on_with_another_parent_and_without_a_foreign_state() -> None:
    given = CIMultiDict([("TraceParent", "broken"), ("tracestate", "a=1"), ("x-other", "kept")])
    assert inject_trace(given, GOOD, "") == CIMultiDict({"traceparent": GOOD, "x-other": "kept"})


def test_metadata_of_grpc_has_only_what_can_be_read() -> None:
    assert metadata_of({"traceparent": "\u00e9", "tracestate": "a=1"}) == {}
    assert metadata_of({"traceparent": GOOD, "tracestate": "a=1"}) == {"traceparent": GOOD, "tracestate": "a=1"}


@given(st.integers(0, 2**128 - 1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_draws_all_that_a_smaller_one_draws(trace: int, a: float, b: float) -> None:
    low, high = sorted((a, b))
    last = trace & LOW_BITS
    assert last < sampling_limit(high) or not last < sampling_limit(low)
    assert last < sampling_limit(1.0) and not last < sampling_limit(0.0)


def test_the_log_keeps_all_but_what_its_shares_leave_out() -> None:
    shares = LogShares({"exact": 0.1, "4xx": 0.5}, rng=lambda: 0.3)
    assert [shares.is_logged(verdict, 200) for verdict in (Verdict.EXACT, Verdict.MISS)] == [False, True]
    assert shares.is_logged(Verdict.EXACT, 404)  # its status goes first
    assert shares.is_logged(Verdict.EXACT, 503)
    assert not LogShares({"5xx": 0.1}, rng=lambda: 0.3).is_logged(Verdict.MISS, 503)
