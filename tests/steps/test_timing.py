"""Nobody learns from the time of an answer what somebody else has asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.adapters.embedding.embedders import BatchingEmbedder
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.cache import model_factory
from tests.fixtures.gateways import LOOSE, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

QUESTION = "what does the contract with the landlord say"
EXACT_ONLY = "exact: {ttl: 1h}"
SEMANTIC_ONLY = "exact: off, semantic: {ttl: 1h, min_similarity: 0.999}"
BOTH = "exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.999}"
GLOBAL = LOOSE.replace("min_similarity: 0.5}", "min_similarity: 0.5}, share: global")


TENANTS = ({"key": "a"}, {"key": "b"})
USERS = ({"key": "a", "user": "ann"}, {"key": "a", "user": "bob"})
SHORT, LONG = (
    "what does the contract with the landlord say about PETS",
    "the contract with the landlord says PETS. " * 200,
)


class Costs(NamedTuple):
    """Everything about a request that a prober could notice, apart from the time itself."""

    encoded: int  # characters that reached the encoder
    calls: int  # of the upstream
    shape: str  # of the answer's headers: their names, and the steps with a time


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Yield the texts that reach the encoder, which embeds in a thread as a model that takes its time."""
    texts: list[str] = []
    encode = HashEncoder.encode

    def counting(self: HashEncoder, given: list[str]) -> list[object]:
        texts.extend(given)
        return encode(self, given)  # type: ignore[return-value]

    monkeypatch.setattr(HashEncoder, "encode", counting)
    monkeypatch.setattr(model_factory, "InlineEmbedder", BatchingEmbedder)
    return texts


def policy_of(share: str, caches: str) -> str:
    return LOOSE.replace(LOOSE[LOOSE.index("{exact") : LOOSE.index("\n    route")], f"{{{caches}, share: {share}}}")


async def ask(served: Served, question: str, who: Mapping[str, str]) -> Answer:
    user = {"user": who["user"]} if "user" in who else {}
    return await served.chat(question, headers={"Authorization": f"Bearer {who['key']}"}, **user)


async def cost_of(
    served: Served, upstream: Upstream, encoded: list[str], question: str, prober: Mapping[str, str]
) -> Costs:
    texts, calls = len(encoded), len(upstream.chats)
    answer = await ask(served, question, prober)
    steps = re.findall(r"(\w+);", answer.headers.get("Server-Timing", ""))
    shape = " ".join([answer.cache_status, *sorted(answer.headers), *sorted(steps)])
    return Costs(sum(map(len, encoded[texts:])), len(upstream.chats) - calls, shape)


@pytest.mark.parametrize("text", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("caches", [EXACT_ONLY, SEMANTIC_ONLY, BOTH], ids=["exact", "semantic", "both"])
@pytest.mark.parametrize(("share", "parties"), [("tenant", TENANTS), ("user", USERS), ("user", TENANTS)])
async def test_a_guess_costs_the_same_whether_somebody_else_asked_it(
    upstream: Upstream,
    tmp_path: Path,
    encoded: list[str],
    text: str,
    caches: str,
    share: str,
    parties: tuple[Mapping[str, str], Mapping[str, str]],
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    other, prober = parties
    async with gateway_of(config, policy_of(share, caches)) as served:
        await cost_of(served, upstream, encoded, text.replace("PETS", "cats"), prober)
        for question in ("dogs", "pets"):  # the second time as well: the gateway then knows the question
            await ask(served, text.replace("PETS", question), other)
            await ask(served, text.replace("PETS", question), other)
            guessed = await cost_of(served, upstream, encoded, text.replace("PETS", question), prober)
            never = await cost_of(served, upstream, encoded, text.replace("PETS", question[::-1]), prober)
            assert guessed == never
            assert (guessed.encoded > 0) is (caches != EXACT_ONLY)


@pytest.mark.parametrize(("share", "parties"), [("tenant", TENANTS), ("user", USERS)])
async def test_a_guess_shares_no_work_with_a_request_in_flight(
    upstream: Upstream,
    tmp_path: Path,
    encoded: list[str],
    share: str,
    parties: tuple[Mapping[str, str], Mapping[str, str]],
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    other, prober = parties
    async with gateway_of(config, policy_of(share, BOTH)) as served:
        upstream.gate.clear()
        asked = [asyncio.create_task(ask(served, SHORT, who)) for who in (other, prober)]
        await until(lambda: len(upstream.chats) == 2)
        assert len([each for each in encoded if "landlord" in each]) == 2
        upstream.gate.set()
        assert {answer.cache_status for answer in await asyncio.gather(*asked)} == {"nearhit; fwd=miss; stored"}


async def test_step_timings_are_in_whole_milliseconds(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, LOOSE) as served:
        for _ in range(2):
            timing = (await served.chat(QUESTION)).headers["Server-Timing"]
            assert re.findall(r"dur=([^,]*)", timing) == re.findall(r"dur=(\d+)(?=,|$)", timing) != []


async def test_step_timings_are_not_shown_where_tenants_share_entries(upstream: Upstream, tmp_path: Path) -> None:
    """They would tell what somebody else has brought about."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, GLOBAL) as served:
        answers = [await served.chat(QUESTION, headers={"Authorization": f"Bearer {key}"}) for key in ("a", "b", "b")]
    assert [answer.cache_status.partition(";")[2].split(";")[0].strip() for answer in answers] == [
        "fwd=miss",
        "hit",
        "hit",
    ]
    assert not any("Server-Timing" in answer.headers for answer in answers)
