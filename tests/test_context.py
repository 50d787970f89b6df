"""A request: what steps know of it, and what they share with work on its behalf."""

from __future__ import annotations

import pytest

from gateway.context import RequestContext
from gateway.request_fields import NO_CALLS, UpstreamCalls
from tests.contracts.test_backend import request_of

MOST_FIELDS = 46  # a field of one feature or step is a `RequestState`, fields of one concern are a group


def test_a_request_has_few_fields() -> None:
    assert len(RequestContext.__slots__) <= MOST_FIELDS


def test_values_that_requests_share_cannot_be_changed() -> None:
    request = request_of()
    for group in (request.work, request.client, request.exposure, request.keys, request.deadlines, request.estimates):
        assert hash(group) is not None, "an object that can be changed has no hash of its own"
        name = next(iter(getattr(group, "_fields", None) or type(group).__slots__))
        with pytest.raises(AttributeError):
            setattr(group, name, None)
    with pytest.raises(AttributeError, match="shared by all requests"):
        NO_CALLS.due = 1.0


def test_a_request_with_another_call_shares_the_calls_to_backends() -> None:
    request = request_of()
    assert request.call is not None
    tuned = request.with_call(request.call)
    tuned.calls.address = "http://a"
    assert (request.calls.address, request.calls.since) == ("http://a", tuned.calls.since)


def test_side_work_has_calls_of_its_own_within_the_same_total_time() -> None:
    request = request_of()
    child = request.child("shadow")
    child.calls.address, child.calls.due = "http://a", 1.0
    assert request.calls.address is None
    assert (request.calls.since, request.calls.due) == (child.calls.since, UpstreamCalls.due)


def test_a_call_of_the_gateway_itself_has_its_own_total_time() -> None:
    request = request_of()
    assert request.internal_child("audit").calls is NO_CALLS
    assert request.internal_child("audit").work == request.work._replace(purpose="audit", internal=True)
