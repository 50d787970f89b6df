"""A key in the query, however it is written, stays out of everything that the gateway writes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.features.gemini.test_gemini_clients import STREAM, WHOLE, asked, before
from tests.fixtures.gateways import EXACT_CACHE
from tests.fixtures.gemini_upstream import gemini
from tests.fixtures.upstream import Upstream

SECRET = "AIzaSyOfTheClient0123456789"
RECORDED = EXACT_CACHE + "    record: {prompts: on}\n"


@pytest.mark.parametrize("adapter", ["openai", "gemini"])
async def test_a_key_in_the_query_is_in_no_log_metric_file_or_key_of_the_store(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture, adapter: str
) -> None:
    caplog.set_level(logging.DEBUG)
    if adapter == "gemini":
        gemini(upstream)
    async with before(upstream, tmp_path, RECORDED, adapter=adapter) as served:
        for query in (f"key={SECRET}", f"%6Bey={SECRET}", f"alt=sse&key={SECRET}", f"key={SECRET}&key={SECRET}"):
            path = STREAM if "sse" in query else WHOLE
            for text in ("one", "one", "two"):
                assert (await served.post(f"{path}?{query}", asked(text), {})).status == 200
            await served.post(f"{WHOLE.replace('generateContent', 'countTokens')}?{query}", asked(), {})
            await served.post(f"/v1beta/tunedModels/x:generateContent?{query}", asked(), {})
            await served.post(f"{WHOLE}?{query}", {"contents": []}, {})
        async with served.session.get(f"{served.admin_url}/metrics") as response:
            assert SECRET not in await response.text()
        async with served.session.get(f"{served.admin_url}/admin/cache/entries?route=default") as response:
            assert SECRET not in await response.text()
        client = served.gateway.stores.redis._client
        stored = b" ".join([key async for key in client.scan_iter(match="*")])
        assert stored
        assert SECRET.encode() not in stored
    assert not any(SECRET in record.getMessage() + str(vars(record)) for record in caplog.records)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


async def test_another_key_is_another_tenant_however_it_is_written(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path) as served:
        verdicts = [
            (await served.post(f"{WHOLE}?{query}", asked(), {})).cache_status.split("; ")[1]
            for query in ("key=one", "%6Bey=one", "%6Bey=two", "key=on%65", "key=two&key=one")
        ]
    assert verdicts == ["fwd=miss", "hit", "fwd=miss", "hit", "fwd=miss"]  # who sends both is neither of them
    assert [call.headers["Authorization"] for call in upstream.calls] == ["Bearer one", "Bearer two", "Bearer one"]
