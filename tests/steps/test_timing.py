"""Nobody learns from the time of an answer what somebody else has asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.adapters.embedding.embedders import BatchingEmbedder
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.cache import model_factory
from tests.fixtures.gateways import LOOSE, config_of, gateway_of
from tests.fixtures.upstream import Upstream

QUESTION = "what does the contract with the landlord say"
GLOBAL = LOOSE.replace("min_similarity: 0.5}", "min_similarity: 0.5}, share: global")


async def test_a_text_is_encoded_anew_for_each_tenant(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedder's memory of texts is each tenant's own."""
    encoded: list[str] = []
    encode = HashEncoder.encode

    def counting(self: HashEncoder, texts: list[str]) -> list[object]:
        encoded.extend(texts)
        return encode(self, texts)  # type: ignore[return-value]

    monkeypatch.setattr(HashEncoder, "encode", counting)
    monkeypatch.setattr(model_factory, "InlineEmbedder", BatchingEmbedder)  # as a model that takes its time has
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, LOOSE) as served:
        for key in ("a", "a", "b"):
            await served.chat(QUESTION, headers={"Authorization": f"Bearer {key}", "Cache-Control": "no-store"})
            await served.chat(QUESTION, headers={"Authorization": f"Bearer {key}"}, seed=len(encoded))
    assert len([text for text in encoded if QUESTION in text]) == 2, "once for each of two tenants"


async def test_step_timings_are_not_shown_where_tenants_share_entries(upstream: Upstream, tmp_path: Path) -> None:
    """Which of them somebody else has brought about, nobody is told."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, GLOBAL) as served:
        answers = [await served.chat(QUESTION, headers={"Authorization": f"Bearer {key}"}) for key in ("a", "b", "b")]
    assert [answer.cache_status.partition(";")[2].split(";")[0].strip() for answer in answers] == [
        "fwd=miss",
        "hit",
        "hit",
    ]
    assert not any("Server-Timing" in answer.headers for answer in answers)
