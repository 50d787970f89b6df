"""What a policy promises is exported as long as it is in force, for alerts to hold what is measured against it."""

from __future__ import annotations

import os
import signal

import pytest

from gateway.config.policy.load import policy_from_text
from tests.fixtures.gateways import Served, store_pid

NARROWER = """
version: 1
routes:
  - name: support
    match: {model: m}
    cache: {semantic: {ttl: 1h, max_wrong_hits: 0.5%}}
    route: {backend: main, confidence: 99%}
  - name: rest
    match: {}
    cache: {semantic: {ttl: 1h, min_similarity: 0.9}}
    route: {backend: main}
"""


async def test_promises_follow_the_policy_and_routes_that_are_gone_are_not_shown(served: Served) -> None:
    gateway = served.gateway
    telemetry = gateway.parts.telemetry
    assert telemetry.max_wrong_hits.values == {("default",): 0.01}
    assert telemetry.promised_confidence.values == {("default",): 0.95}
    policy = policy_from_text(NARROWER, "policy.yaml", gateway.config)
    gateway.apply(policy)
    assert telemetry.max_wrong_hits.values == {("support",): 0.005}
    assert telemetry.promised_confidence.values == {("support",): 0.99, ("rest",): 0.95}
    assert telemetry.policy_info.values == {(policy.hash,): 1.0}


@pytest.mark.usefixtures("killed_for_good")
async def test_a_store_that_does_not_answer_is_down(served: Served) -> None:
    gateway = served.gateway
    await gateway.gauges.sample()
    assert gateway.parts.telemetry.store_up.values == {(): 1.0}
    os.kill(store_pid(served), signal.SIGKILL)
    await gateway.gauges.sample()
    assert gateway.parts.telemetry.store_up.values == {(): 0.0}
