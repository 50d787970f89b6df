"""Pairs that differ in a detail, through the models that ship and through a whole gateway.

A route that has learnt nothing has the lowest thresholds while its scope is small, and a promise of 2 % has a lower one
than 1 %.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.adapters.onnx.model_files import MODEL, MODEL_FILE, default_model_dir
from gateway.cache.model_factory import build_encoder, build_verifier
from gateway.cache.threshold.route_control import RouteControl
from gateway.calls import Decisive
from gateway.config.schema import EmbedderConfig, VerifierConfig
from quality.decision import CachingEmbedder, Decision, StoredQuestion
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, question_of

pytestmark = pytest.mark.slow  # reads hundreds of pairs with the models

PAIRS = [
    json.loads(line) for line in (Path(__file__).parent / "spellings.jsonl").read_text(encoding="utf-8").splitlines()
]
LEAST_SAME = 57 / 60  # share of the harmless variations
POLICY = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 2%}}
    route: {backend: main}
"""


@pytest.fixture(autouse=True)
def models() -> None:
    if not (default_model_dir() / MODEL / MODEL_FILE).exists():
        pytest.skip("the embedding model is not built: run `make setup`")


async def test_the_models_serve_no_other_letter_and_nearly_every_harmless_variation() -> None:
    embedder = CachingEmbedder(build_encoder(EmbedderConfig(threads=1)))
    verifier = build_verifier(VerifierConfig(), EmbedderConfig())
    floor = verifier.floor
    for promise in (0.01, 0.02):
        for entries in (1, 1001):
            decision = Decision(verifier, embedder, RouteControl(verifier.prior, verifier.basis), promise)
            decision.entries = entries
            served: dict[bool, list[str]] = {True: [], False: []}
            for pair in PAIRS:
                asked, stored = (Decisive(b"", b"", pair[side]).focus or "" for side in ("asked", "stored"))
                mine, other = await embedder.embed(asked), await embedder.embed(stored)
                similarity = min(1.0, max(0.0, float(mine.vector @ other.vector)))
                if mine.partial or other.partial or similarity < floor:
                    continue
                near = [(StoredQuestion("f", stored), similarity)]
                judged = await decision.judge(asked, mine.vector, near)
                if judged.reason is None:
                    served[pair["same"]].append(f"{stored} | {asked}")
            assert not served[False], (promise, entries)
            assert len(served[True]) >= LEAST_SAME * sum(pair["same"] for pair in PAIRS), (promise, entries)
    verifier.close()


async def test_a_gateway_serves_no_other_letter_and_nearly_every_harmless_variation(
    upstream: Upstream, tmp_path: Path
) -> None:
    """Each pair is alone in its scope."""

    async def unlike(request: web.Request, body: dict[str, Any]) -> web.Response:
        answer = sha256(question_of(body).encode()).hexdigest()
        return web.json_response(completion(body, " ".join(answer[at : at + 4] for at in range(0, 64, 4))))

    upstream.answer = unlike
    main = {"main": {"adapter": "openai", "url": upstream.url}}
    hits: dict[bool, list[str]] = {True: [], False: []}
    async with gateway_of(config_of(tmp_path, main, embedder={"adapter": "onnx"}), POLICY) as served:
        for seed, pair in enumerate(PAIRS):
            await served.chat(pair["stored"], seed=seed)
            answer = await served.chat(pair["asked"], seed=seed)
            assert answer.status == 200
            if "; hit" in answer.cache_status:
                hits[pair["same"]].append(f"{pair['stored']} | {pair['asked']}")
    assert not hits[False]
    assert len(hits[True]) >= LEAST_SAME * sum(pair["same"] for pair in PAIRS)
