"""Stored answers looked at closely: by whom, how often hit, and with their words only where the policy says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

OPEN = BOTH_CACHES.replace("match: {}", "match: {}\n    record: {prompts: on}")


async def got(served: Served, path: str) -> Any:
    async with served.session.get(served.admin_url + path) as response:
        return response.status, await response.json()


async def test_the_most_hit_come_first_with_their_words_where_they_may_be_shown(
    upstream: Upstream, tmp_path: Path
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, OPEN) as served:
        for question, times in (("seldom", 2), ("often", 4), ("once", 1)):
            for _ in range(times):
                await served.chat(question)
        _, top = await got(served, "/admin/cache/top")
        assert [(e["question"], e["hits"]) for e in top["entries"]] == [("often", 3), ("seldom", 1)]
        assert top["prompts_of"] == ["default"]
        status, one = await got(served, f"/admin/cache/entries/{top['entries'][0]['fingerprint']}")
        assert (status, one["question"], one["answer"]) == (200, "often", "upstream answers: often")
        assert 0 < one["expires_in_s"] <= 3600


async def test_without_record_nobody_is_shown_a_word(served: Served) -> None:
    for _ in range(2):
        await served.chat("a secret question")
    _, top = await got(served, "/admin/cache/top")
    (entry,) = top["entries"]
    _, one = await got(served, f"/admin/cache/entries/{entry['fingerprint']}")
    assert (entry["question"], one["question"], one["answer"], one["prompts"]) == (None, None, None, False)


async def test_what_is_not_there_is_404_and_a_wrong_limit_400(served: Served) -> None:
    status, said = await got(served, f"/admin/cache/entries/{'0' * 64}")
    assert status == 404
    assert "no such answer is stored" in said["error"]
    assert (await got(served, "/admin/cache/top?limit=0"))[0] == 400


async def test_entries_are_found_by_all_that_is_given(served: Served) -> None:
    await served.chat("hi", headers={"Cache-Tag": "a"})
    for query, found in (("tag=a&model=m", 1), ("tag=a&model=other", 0), ("backend=main", 1), ("tenant=nobody", 0)):
        assert len((await got(served, f"/admin/cache/entries?{query}"))[1]["entries"]) == found, query
