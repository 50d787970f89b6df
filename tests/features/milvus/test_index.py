"""The index in Milvus beneath real gateways: shared by them, away, and what it lets go by itself."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.circuit_breaker import BreakerState
from gateway.errors import IndexUnavailable, StartupError
from tests.fixtures.entries import DIMENSION, vector_of
from tests.fixtures.gateways import LOOSE, config_of, gateway_of, recovered
from tests.fixtures.milvus import LACKING, LiteIndex, absent_index
from tests.fixtures.stores import OutsideServer
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream

needed = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
STORED, ASKED = "alpha beta gamma delta epsilon", "alpha beta gamma delta zeta"
SEMANTIC = "nearhit; hit; detail=semantic"


def config(folder: Path, upstream: Upstream, url: str, **sections: Any) -> Any:
    index = {"adapter": "milvus", "url": url, "timeout": "20s"}
    return config_of(folder, {"main": {"adapter": "openai", "url": upstream.url}}, index=index, **sections)


@needed
async def test_what_one_gateway_stores_another_finds_at_once_and_nobody_follows_for_it(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    store = {"url": outside_store.url, "timeout": "10s"}
    first, second = (config(tmp_path / name, upstream, str(tmp_path / "m.db"), store=store) for name in "ab")
    async with gateway_of(first, LOOSE) as one, gateway_of(second, LOOSE) as other:
        await recovered(one)
        await recovered(other)
        await one.chat(STORED)
        assert (await other.chat(ASKED)).cache_status == SEMANTIC
        entry = (await one.chat(STORED)).headers["Cache-Status"]
        assert "exact" in entry
        assert len(await other.gateway.parts.space.index.fingerprints()) == 1
        answer = await one.session.post(one.admin_url + "/admin/cache/purge", json={"like": STORED})
        assert (await answer.json())["removed"] == 1
        assert not (await other.chat(ASKED)).cache_status.startswith("nearhit; hit")


@needed
async def test_a_restart_finds_what_was_stored_without_reading_the_store(upstream: Upstream, tmp_path: Path) -> None:
    wanted = config(tmp_path, upstream, "milvus.db")
    async with gateway_of(wanted, LOOSE) as served:
        await served.chat(STORED)
    assert (tmp_path / "milvus.db").exists()
    async with gateway_of(wanted, LOOSE) as served:
        await recovered(served)
        assert (await served.chat(ASKED)).cache_status == SEMANTIC


@needed
async def test_without_its_server_the_gateway_starts_and_every_request_is_answered(
    upstream: Upstream, tmp_path: Path
) -> None:
    wanted = config(tmp_path, upstream, f"http://127.0.0.1:{free_ports(1)[0]}")
    async with gateway_of(wanted, LOOSE) as served:
        await recovered(served)
        assert (await served.chat(STORED)).status == 200
        assert (await served.chat(ASKED)).cache_status.startswith("nearhit; fwd=miss")
        assert (await served.chat(STORED)).cache_status.startswith("nearhit; hit; detail=exact")


@needed
async def test_a_server_that_keeps_failing_is_left_alone() -> None:
    index = absent_index(DIMENSION)
    try:
        for _ in range(5):
            with pytest.raises(IndexUnavailable, match="failed"):
                await index.search("s", vector_of(1), 4)
        assert index.breaker is BreakerState.OPEN
        with pytest.raises(IndexUnavailable, match="not called for a moment"):
            await index.add("a", "s", vector_of(1))
    finally:
        await index.close()


@needed
async def test_a_server_that_does_not_answer_costs_its_timeout_and_holds_up_nothing_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait there for ever
        index = absent_index(DIMENSION, silent.getsockname()[1], timeout_s=0.2)
        with pytest.raises(IndexUnavailable, match=r"0\.2 s|failed"):
            async with asyncio.timeout(2.0):
                await index.search("s", vector_of(1), 4)
        await index.close()


@needed
async def test_what_has_expired_is_swept() -> None:
    index = LiteIndex(DIMENSION)
    try:
        await index.add("old", "s", vector_of(1), expires=1000.0)
        await index.add("young", "s", vector_of(2))
        await index.sweep()
        assert await index.fingerprints() == ["young"]
    finally:
        index.close()


@needed
async def test_a_scope_is_counted_when_it_is_first_searched() -> None:
    index = LiteIndex(DIMENSION)
    try:
        for i in range(3):
            await index.add(str(i), "s", vector_of(i))
        assert index.count("s") == 0
        await index.search("s", vector_of(1), 1)
        assert index.count("s") == 3
        await index.add("more", "s", vector_of(9))
        assert index.count("s") == 4
    finally:
        index.close()


async def test_without_the_extra_the_gateway_says_which(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    for loaded in ("gateway.features.milvus.index", "gateway.features.milvus.server"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    with pytest.raises(StartupError, match=r"pip install 'nearhit\[milvus\]'"):
        async with gateway_of(config(tmp_path, upstream, "http://127.0.0.1:19530"), LOOSE):
            pass


@needed
async def test_one_command_fills_milvus_from_the_store_and_faiss_again(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(adapter: str) -> str:
        index = "{adapter: milvus, url: milvus.db, timeout: 20s}" if adapter == "milvus" else "{adapter: faiss}"
        document = (
            f"version: 1\ndata_dir: data\nembedder: {{adapter: hash}}\nstore: {{timeout: 10s}}\nindex: {index}\n"
            f"backends: {{main: {{adapter: openai, url: {upstream.url}}}}}\n"
        )
        (tmp_path / "config.yaml").write_text(document)
        return str(tmp_path / "config.yaml")

    async def migrated(adapter: str) -> dict[str, Any]:
        code = await asyncio.to_thread(main, ["index", "migrate", "--json", "--config", written(adapter)])
        said = json.loads(capsys.readouterr().out)
        assert (code, said["index"], said["in_store"], said["in_index"]) == (0, adapter, 2, 2)
        return {key: said[key] for key in ("added", "removed")}

    checkpoint = tmp_path / "data" / "index" / "checkpoint"
    async with gateway_of(config_of(tmp_path / "data", {"main": {"adapter": "openai", "url": upstream.url}})) as served:
        await served.chat(STORED)
        await served.chat("which trains go to Vienna tomorrow morning")
    assert await migrated("milvus") == {"added": 2, "removed": 0}
    assert await migrated("milvus") == {"added": 0, "removed": 0}
    async with gateway_of(config(tmp_path / "data", upstream, "milvus.db"), LOOSE) as served:
        await recovered(served)
        assert await served.gateway.parts.space.index.fingerprints()
    checkpoint.unlink()
    assert await migrated("faiss") == {"added": 2, "removed": 0}
    assert checkpoint.exists()
