"""What is told of a lookup by similarity: to the client in headers, to operators in the access log."""

from __future__ import annotations

import io
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.observability.access_log import AccessLog
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

POLICY = """
version: 1
routes:
  - name: plain
    match: {model: plain}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.8}}
    route: {backend: main}
  - name: silent
    match: {model: silent}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.8}}
    route: {backend: main}
    expose_headers: false
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%}}
    route: {backend: main}
"""
STORED, ASKED = "How do I reset the password of my account?", "How do I reset the password of my new account?"
# Server-Timing, section 3 (https://www.w3.org/TR/server-timing/#the-server-timing-header-field), and RFC 9110 5.6.
TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
QUOTED = r'"(?:[\t !#-\[\]-~]|\\[\t -~])*"'
METRIC = re.compile(rf"({TOKEN})((?:[ \t]*;[ \t]*{TOKEN}=(?:{TOKEN}|{QUOTED}))*)")
PARAM = re.compile(rf"({TOKEN})=({TOKEN}|{QUOTED})")


@dataclass(frozen=True)
class Told:
    """A gateway with what its access log holds."""

    served: Served
    log: AccessLog
    stream: io.StringIO

    async def ask(self, question: str, model: str = "m", **fields: Any) -> Answer:
        return await self.served.chat(question, model=model, **fields)

    def line(self, answer: Answer) -> dict[str, Any]:
        """The access line of this answer."""
        self.log.flush()
        lines = map(json.loads, self.stream.getvalue().splitlines())
        return next(line for line in lines if line["id"] == answer.headers["x-request-id"])

    async def explained(self, route: str) -> dict[str, Any]:
        body = {"stored": STORED, "asked": ASKED, "route": route}
        async with self.served.session.post(self.served.admin_url + "/admin/cache/explain", json=body) as response:
            assert response.status == 200
            return await response.json()


@pytest.fixture
async def told(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Told]:
    stream = io.StringIO()
    log = AccessLog(stream)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, verifier={"adapter": "learned"})
    async with gateway_of(config, POLICY, access_log=log) as served:
        yield Told(served, log, stream)


def timing(answer: Answer) -> dict[str, dict[str, str]]:
    """The header by its grammar: metric -> parameter -> value, unquoted."""
    value, at, found = answer.headers["Server-Timing"], 0, {}
    while at < len(value):
        metric = METRIC.match(value, at)
        assert metric is not None, value[at:]
        found[metric[1]] = {name: given.strip('"') for name, given in PARAM.findall(metric[2])}
        at = metric.end()
        if at < len(value):
            comma = re.compile(r"[ \t]*,[ \t]*").match(value, at)
            assert comma is not None, value[at:]
            at = comma.end()
    return found


async def test_the_probability_is_in_server_timing_where_a_neighbour_was_judged(told: Told) -> None:
    expected = await told.explained("default")
    first = await told.ask(STORED)
    assert "verify" not in timing(first), "there was nothing to judge"
    answer = await told.ask(ASKED)
    said = timing(answer)
    assert said["verify"]["desc"] == f"p={expected['probability']:.3f}"
    assert float(said["verify"]["dur"]) >= 0
    assert not [name for name, params in said.items() if name != "verify" and "desc" in params]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_hit_tells_its_similarity_and_its_verification(told: Told, stream: bool) -> None:
    await told.ask(STORED, "plain")
    hit = await told.ask(ASKED, "plain", stream=stream)
    assert hit.cache_status == "nearhit; hit; detail=semantic"
    assert re.fullmatch(r"0\.\d{4}", hit.headers["x-nearhit-similarity"])
    assert re.fullmatch(r"p=[01]\.\d{3}", timing(hit)["verify"]["desc"])


async def test_the_same_words_are_certain(told: Told) -> None:
    await told.ask(STORED)
    again = await told.ask(f"{STORED}  ")
    assert again.cache_status == "nearhit; hit; detail=semantic"
    assert timing(again)["verify"]["desc"] == "p=1.000"


async def test_a_policy_can_hide_all_of_it_from_clients_and_not_from_the_log(told: Told) -> None:
    await told.ask(STORED, "silent")
    hit = await told.ask(ASKED, "silent")
    assert hit.text == f"upstream answers: {STORED}", "it was a hit"
    hidden = {"server-timing", "x-nearhit-similarity", "cache-status", "x-nearhit-route", "age"}
    assert hidden.isdisjoint(name.lower() for name in hit.headers)
    assert told.line(hit)["verdict"] == "semantic"
    assert told.line(hit)["judged"]["threshold"] == 0.8


async def test_the_log_says_what_every_judged_lookup_came_to(told: Told) -> None:
    expected = await told.explained("default")
    first = await told.ask(STORED)
    assert "judged" not in told.line(first)
    judged = told.line(await told.ask(ASKED))["judged"]
    assert set(judged) >= {"similarity", "score", "threshold", "probability"}
    for name in ("similarity", "score", "probability"):
        assert judged[name] == pytest.approx(expected[name], abs=0.0001), name
    assert 0.4 <= judged["threshold"] <= expected["threshold"], "explain assumes a cache of the usual size"
    assert "judged" not in told.line(await told.ask(STORED)), "an exact hit is not judged"


async def test_the_log_has_no_word_of_the_questions(told: Told) -> None:
    await told.ask(STORED)
    await told.ask(ASKED)
    told.log.flush()
    assert "password" not in told.stream.getvalue()
