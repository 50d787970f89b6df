"""What is kept of requests, and what is not."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from gateway.config.policy.load import policy_from_text
from gateway.features.recorder.recorded_request import is_sampled
from gateway.features.recorder.rule import RecordRule
from gateway.steps.traffic_log.reader import TrafficLog, TrafficUnreadable, read_traffic
from gateway.steps.traffic_log.segments import segments_in
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected


def records(rule: str) -> str:
    return f"{BOTH_CACHES}    record: {rule}\n"


SECRET = "Where did Ms. Quillfeather put the emerald?"
FIRST, OTHER = "How do I reset my password today please", "How do I reset my password today kindly"


async def flushed(served: Served, folder: Path, clock: FakeClock | None = None) -> TrafficLog:
    await served.gateway.parts.recorder.flush()
    return read_traffic("last-1h", folder / "traffic", served.gateway.parts.clock.wall())


def config(tmp_path: Path, upstream: Upstream, **sections: object):
    return config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, **sections)


async def test_every_request_is_recorded_whatever_path_its_answer_took(upstream: Upstream, tmp_path: Path) -> None:
    """The third one is answered by the front, which reads nothing of it."""
    async with gateway_of(config(tmp_path, upstream), records("on")) as served:
        for _ in range(3):
            await served.chat(FIRST, headers={"authorization": "Bearer secret-key"})
        await served.chat(OTHER, headers={"authorization": "Bearer secret-key"})
        rows = (await flushed(served, tmp_path)).requests
    assert [row.verdict for row in rows[:3]] == ["miss", "exact", "exact"]
    assert len({row.request.canonical for row in rows}) == 2
    assert len({row.request.context for row in rows}) == len({row.request.tenant for row in rows}) == 1
    assert rows[0].stored
    assert rows[1].hit is not None
    assert rows[1].hit.entry == rows[2].hit.entry == rows[0].entry  # type: ignore[union-attr]
    assert rows[3].considered[0].entry == rows[0].entry
    assert rows[0].vector is not None
    assert rows[0].answer is not None


async def test_neither_text_nor_tenant_nor_key_is_in_the_log(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), records("on")) as served:
        await served.chat(SECRET, headers={"authorization": "Bearer secret-key"}, user="alice@example.org")
        (row,) = (await flushed(served, tmp_path)).requests
    content = b"".join(path.read_bytes() for path in segments_in(tmp_path / "traffic"))
    for word in (b"Quillfeather", b"emerald", b"secret-key", b"alice"):
        assert word not in content
    assert row.prompt is None


async def test_the_question_is_kept_where_the_policy_says_so(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), records("{prompts: on}")) as served:
        await served.chat(SECRET)
        (row,) = (await flushed(served, tmp_path)).requests
    assert row.prompt == SECRET


async def test_only_the_owner_can_read_it(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), records("on")) as served:
        await served.chat(FIRST)
        await flushed(served, tmp_path)
    folder = tmp_path / "traffic"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


async def test_a_route_that_does_not_record_leaves_nothing(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), records("off")) as served:
        await served.chat(FIRST)
        await served.gateway.parts.recorder.flush()
    assert not (tmp_path / "traffic").exists()
    with pytest.raises(TrafficUnreadable, match=r"^no traffic was recorded in .* expected routes with record: on"):
        read_traffic("last-1h", tmp_path / "traffic", 0.0)


async def test_what_is_beyond_the_buffer_is_dropped_and_counted(upstream: Upstream, tmp_path: Path) -> None:
    bounds = {"max_buffered": 2, "flush": "1h"}
    async with gateway_of(config(tmp_path, upstream, traffic=bounds), records("on")) as served:
        recorder: Any = served.gateway.parts.recorder.log
        traffic = recorder.metrics.traffic.values
        await served.chat(FIRST)
        await until(lambda: traffic.get(("recorded",)) == 1)  # half of the bound: it is written at once
        async with recorder._write_lock:  # a disk that takes its time
            for _ in range(5):
                await served.chat(FIRST)
        assert traffic["dropped",] == 3
        assert len((await flushed(served, tmp_path)).requests) == 3


async def test_all_is_written_when_the_gateway_ends(upstream: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    async with gateway_of(config(tmp_path, upstream), records("on"), clock=clock) as served:
        await served.chat(FIRST)
    assert len(read_traffic("last-1h", tmp_path / "traffic", clock.wall()).requests) == 1


async def test_segments_are_rotated_and_the_oldest_removed(upstream: Upstream, tmp_path: Path) -> None:
    bounds = {"segment_size": "1B", "max_size": "20kB"}
    async with gateway_of(config(tmp_path, upstream, traffic=bounds), records("on")) as served:
        for number in range(12):
            await served.chat(f"{FIRST} {number}")
            await served.gateway.parts.recorder.flush()
    kept = segments_in(tmp_path / "traffic")  # of one batch each; labels come in batches of their own
    assert 2 < len(kept) < 12
    assert sum(path.stat().st_size for path in kept) < 30_000


async def test_a_segment_that_is_cut_off_is_read_up_to_there(upstream: Upstream, tmp_path: Path) -> None:
    exact = records("on").replace(", semantic: {ttl: 1h, max_wrong_hits: 1%}", "")  # no labels, in batches of their own
    async with gateway_of(config(tmp_path, upstream), exact) as served:
        for number in range(2):
            await served.chat(f"{FIRST} {number}")
            await served.gateway.parts.recorder.flush()
    (path,) = segments_in(tmp_path / "traffic")
    path.write_bytes(path.read_bytes()[:-7])
    traffic = read_traffic(str(path), tmp_path, 0.0)
    assert len(traffic.requests) == 1
    assert traffic.notes == (f"{path.name} is cut off or damaged after batch 1: the rest is not replayed",)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"nonsense that is no segment", "is damaged at its beginning, or is not a segment of a traffic log"),
        (b"", "is damaged at its beginning, or is not a segment of a traffic log"),
    ],
)
def test_what_is_no_segment_is_said(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "000000000000001.segment"
    path.write_bytes(content)
    with pytest.raises(TrafficUnreadable, match=sentence):
        read_traffic(str(tmp_path), tmp_path, 0.0)


@pytest.mark.parametrize("wanted", ["last-24", "last-soon", "/nowhere/at/all"])
def test_a_window_that_is_none_is_said(wanted: str, tmp_path: Path) -> None:
    with pytest.raises(TrafficUnreadable, match="expected"):
        read_traffic(wanted, tmp_path, 0.0)


def test_a_question_is_drawn_with_all_its_repeats() -> None:
    digests = [number.to_bytes(8, "big") + bytes(8) for number in range(0, 2**64, 2**54)]
    assert sum(is_sampled(digest, 0.25) for digest in digests) == len(digests) / 4
    assert all(is_sampled(digest, 1.0) for digest in digests)
    assert RecordRule().share == 1.0


async def test_another_policy_begins_another_segment(upstream: Upstream, tmp_path: Path) -> None:
    """What rows stand on is said at the beginning of their segment: names of headers, and the embedding model."""
    async with gateway_of(config(tmp_path, upstream), records("on")) as served:
        await served.chat(FIRST)
        await served.gateway.parts.recorder.flush()
        named = records("on").replace("match: {}", "match: {headers: {x-app: a, authorization: b}}", 1)
        default = "  - {name: last, match: {}, route: {backend: main}, record: on}\n"
        served.gateway.apply(policy_from_text(named + default, "policy.yaml", served.gateway.config))
        await served.chat(FIRST, headers={"x-app": "a", "authorization": "Bearer secret-key"})
        traffic = await flushed(served, tmp_path)
    assert len(segments_in(tmp_path / "traffic")) >= 2
    assert traffic.heading.headers == ()
    assert traffic.requests[-1].request.headers == (("x-app", "a"),)  # no credentials, whatever the policy matches by
    assert len({row.policy for row in traffic.requests}) == 2


async def test_of_more_than_goes_into_memory_the_last_are_read(upstream: Upstream, tmp_path: Path) -> None:
    bounds, clock = {"segment_size": "1B"}, FakeClock()
    async with gateway_of(config(tmp_path, upstream, traffic=bounds), records("on"), clock=clock) as served:
        for number in range(4):
            clock.advance(60.0)
            await served.chat(f"{FIRST} {number}")
            await served.gateway.parts.recorder.flush()
        traffic = read_traffic(str(tmp_path / "traffic"), tmp_path, 0.0, limit=2)
    assert len(traffic.requests) == 2
    assert traffic.notes[0].startswith("only the last 2 requests of ")
    assert traffic.heading.started <= traffic.requests[0].at + 1.0


async def test_a_header_that_is_no_utf_8_ends_no_recording(upstream: Upstream, tmp_path: Path) -> None:
    rules = records("on").replace("match: {}", 'match: {headers: {x-app: "*"}}', 1)
    rules += "  - {name: rest, match: {}, route: {backend: main}}\n"
    async with gateway_of(config(tmp_path, upstream), rules) as served:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": FIRST}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-App: caf\xe9\r\nContent-Length: %d\r\n\r\n"
        async with connected(served.url) as wire:
            await wire.send(head % len(body) + body)
            assert (await wire.message()).status == 200
        (row,) = (await flushed(served, tmp_path)).requests
        assert row.request.headers == (("x-app", "caf\udce9"),)
        await served.chat(OTHER, headers={"x-app": "plain"})
        assert len((await flushed(served, tmp_path)).requests) == 2


async def test_the_recorder_opens_with_the_first_policy_that_records(upstream: Upstream, tmp_path: Path) -> None:
    settings = config(tmp_path, upstream)
    async with gateway_of(settings, BOTH_CACHES) as served:
        await served.chat(FIRST)
        assert served.gateway.parts.recorder.log is None
        served.gateway.apply(policy_from_text(records("on"), "p.yaml", settings))
        await served.chat(OTHER)
        rows = (await flushed(served, tmp_path)).requests
    assert len(rows) == 1


async def test_an_erasure_reaches_the_log_of_a_former_policy(upstream: Upstream, tmp_path: Path) -> None:
    settings = config(tmp_path, upstream)
    async with gateway_of(settings, records("{prompts: on}")) as served:
        await served.chat(SECRET, user="alice")
    async with gateway_of(settings, BOTH_CACHES) as served:
        body = {"subject": "user:alice"}
        async with served.session.post(f"{served.admin_url}/admin/cache/erase", json=body) as answer:
            assert (await answer.json())["report"]["counts"]["traffic"] == 1
    with pytest.raises(TrafficUnreadable, match="no request was recorded"):
        read_traffic("last-1h", tmp_path / "traffic", served.gateway.parts.clock.wall())
