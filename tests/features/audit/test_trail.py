"""The audit trail: its file, and its list in the store."""

from __future__ import annotations

import json
from pathlib import Path

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from gateway.features.audit.file import AuditFile
from gateway.features.audit.redis import MAX_AUDIT, RedisAudit
from tests.fixtures.gateways import PATIENT_S
from tests.fixtures.stores import OutsideServer


def test_the_trail_is_bounded_and_read_from_its_end(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, max_bytes=100, files=3)
    lines = [json.dumps({"number": i, "pad": "x" * 20}).encode() for i in range(20)]
    for line in lines:
        file.append(line)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all((tmp_path / name).stat().st_size <= 100 for name in kept)
    latest = file.latest(100)
    assert latest == lines[::-1][: len(latest)]
    assert len(latest) >= 4
    assert file.latest(2) == lines[::-1][:2]


def test_a_line_longer_than_a_block_is_read_whole(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, max_bytes=10**6, files=1)
    lines = [b"a" * 70_000, b"b", b"c" * 200_000]
    for line in lines:
        file.append(line)
    assert file.latest(10) == lines[::-1]


async def test_the_list_in_the_store_is_bounded_and_the_youngest_come_first(outside_store: OutsideServer) -> None:
    store = RedisStore(connect(outside_store.url, PATIENT_S), embedder="e", timeout_s=PATIENT_S, clock=SystemClock())
    trail = RedisAudit(store)
    for i in range(MAX_AUDIT + 5):
        await trail.add(str(i).encode())
    assert await trail.latest(2) == [b"1004", b"1003"]
    assert len(await trail.latest(5_000)) == MAX_AUDIT
    await store.close()
