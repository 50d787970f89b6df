"""Prompts and answers in exported traces: only where a policy asks for them, and without personal data."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.adapters.system import otlp_exporter
from gateway.features.prompt_traces.step import TRACED
from tests.features.erasure.test_erasure import SECRET, erase
from tests.fixtures.collector import Collector, collecting
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.upstream import Upstream

POLICY = """
version: 1
routes:
  - name: cut
    match: {model: cut}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
    trace: {max_chars: 5, answers: off}
  - name: silent
    match: {model: silent}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
    trace: off
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.99}}
    route: {backend: main}
    privacy: {pii: [email], action: redact-key}
    trace: on
"""
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    monkeypatch.setattr(otlp_exporter, "CLOSE_TIMEOUT_S", 60.0)
    async with collecting() as found:
        yield found


def text_in(value: object) -> str:
    """Return the text of messages in OpenTelemetry's form."""
    ((message,)) = json.loads(str(value))
    (part,) = message["parts"]
    return f"{message['role']}: {part['content']}"


async def test_spans_have_the_texts_of_routes_that_ask_for_them(
    upstream: Upstream, collector: Collector, tmp_path: Path
) -> None:
    telemetry = {"traces": {"endpoint": collector.url, "timeout": "60s"}}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, telemetry=telemetry)
    async with gateway_of(config, POLICY) as served:
        for stream in (False, False, True):
            await served.chat("mail ann@example.org", stream=stream)
        await served.chat("a stream", stream=True)
        await served.chat("long " * 7_000)
        await served.chat("cut this", model="cut")
        await served.chat("say nothing", model="silent")
    found = [span.attributes for span in collector.spans if span.kind == "server"]
    spoken = [(text_in(each[INPUT]), text_in(each[OUTPUT])) for each in found[:4]]
    mail = "user: mail <email>", "assistant: upstream answers: mail <email>"
    assert spoken == [mail, mail, mail, ("user: a stream", "assistant: upstream answers: a stream")]
    assert not {INPUT, OUTPUT} & found[4].keys(), "too long to look for personal data in it"
    assert (text_in(found[5][INPUT]), OUTPUT in found[5]) == ("user: cut t", False)
    assert not {INPUT, OUTPUT} & found[6].keys()
    assert not any(b"ann@example.org" in body or b"say nothing" in body for body in collector.bodies)


async def test_an_erasure_says_that_it_does_not_reach_the_receiver(upstream: Upstream, tmp_path: Path) -> None:
    store = {"erasure_key_env": "ERASURE"}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, store=store)
    async with gateway_of(config, POLICY, {"ERASURE": SECRET}) as served:
        notes = (await erase(served, "user:alice"))["report"]["notes"]
    assert f"not reached: {TRACED.what} ({TRACED.reach.erase})" in notes
