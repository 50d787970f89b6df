"""The metric of second opinions, through a real gateway with the cross-encoder that ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cache.verifiers import MAX_WAITING, TwoStageVerifier
from tests.fixtures.gateways import BOTH_CACHES, config_of, gateway_of
from tests.fixtures.upstream import Upstream

# A bound at which every neighbour could be served, whatever the weights.
POLICY = BOTH_CACHES.replace("max_wrong_hits: 1%", "max_wrong_hits: 100%")


@pytest.mark.parametrize(
    ("cross_encoder", "is_busy", "counted"),
    [("on", False, {"asked": 1.0}), ("on", True, {"none": 1.0}), ("off", False, {})],
)
async def test_lookups_with_a_neighbour_to_be_read_closely_are_counted(
    upstream: Upstream, tmp_path: Path, cross_encoder: str, is_busy: bool, counted: dict[str, float]
) -> None:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    config = config_of(tmp_path, backends, embedder={"adapter": "onnx"}, verifier={"cross_encoder": cross_encoder})
    async with gateway_of(config, POLICY) as served:
        verifier = served.gateway.parts.space.verifier
        if is_busy:
            assert isinstance(verifier, TwoStageVerifier)
            for _ in range(MAX_WAITING):
                verifier._pairs.enter(threads=1)
        await served.chat("How do I reset my password?")
        await served.chat("How can I reset my password?")
        async with served.session.get(served.admin_url + "/metrics") as response:
            lines = (await response.text()).splitlines()
    found = [line for line in lines if line.startswith("nearhit_second_opinions_total{")]
    assert {line.split('outcome="')[1].split('"')[0]: float(line.split()[-1]) for line in found} == counted
