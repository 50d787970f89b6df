"""Equal prompts have an equal complexity, whatever caches their routes have and whatever their embedding says."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.upstream import Upstream

CACHES = {
    "both": "{exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.99}}",
    "exact": "{exact: {ttl: 1h}, semantic: off}",
    "semantic": "{exact: off, semantic: {ttl: 1h, max_wrong_hits: 1%}}",
    "none": "{exact: off, semantic: off}",
}
POLICY = "version: 1\nroutes:\n" + "".join(
    f"  - name: {name}\n    match: {match}\n    cache: {caches}\n    route: {{light: light, large: large}}\n"
    for (name, caches), match in zip(
        CACHES.items(), ("{model: both}", "{model: exact}", "{model: semantic}", "{}"), strict=True
    )
)
PROMPTS = [
    prompt
    for line in (Path(__file__).parent / "easy_and_hard.jsonl").read_text("utf-8").splitlines()
    for prompt in (json.loads(line)["easy"][3], json.loads(line)["hard"][3])
] + [
    "Which gas do plants take up?\nA. oxygen\nB. nitrogen\nC. carbon dioxide\nD. helium\nAnswer:",
    "Summarise the minutes. " + "The board met on Monday and spoke about the new hall. " * 60,
]


async def test_equal_prompts_have_an_equal_complexity_whatever_caches_the_route_has(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    backends = {"light": {"adapter": "openai", "url": light.url}, "large": {"adapter": "openai", "url": large.url}}
    async with gateway_of(config_of(tmp_path, backends, embedder={"adapter": "onnx"}), POLICY) as served:
        for prompt in PROMPTS:
            answers = [await served.chat(prompt, model=name) for name in CACHES]
            choices = {(a.headers["x-nearhit-complexity"], a.headers["x-nearhit-backend"]) for a in answers}
            assert len(choices) == 1, (prompt, choices)
            assert [answer.headers["x-nearhit-route"] for answer in answers] == list(CACHES)
