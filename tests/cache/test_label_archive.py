"""Labels with their texts: kept where a policy allows it, for a time, within bounds, and read for tuning."""

from __future__ import annotations

import time
from pathlib import Path

import msgpack
import pytest

from gateway.cache import label_archive
from gateway.cache.label_archive import FOLDER, LabelArchive, read_labels
from gateway.cache.threshold.wrong_hits import Label
from gateway.config.policy.load import load_policy
from tests.cache.test_audits import ASKED, STORED, answering, config, policy, same
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import entry_of, judged_of
from tests.fixtures.gateways import gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

DAY = 86_400.0


def archive_in(folder: Path, clock: FakeClock, more: str = ", learn: {keep: 30d}") -> LabelArchive:
    found = LabelArchive(folder, clock)
    upstream = type("Url", (), {"url": "http://127.0.0.1:1/v1"})()
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "policies" / "default.yaml").write_text(policy(more, "max_wrong_hits: 1%"))
    found.apply(load_policy(folder / "policies", config(folder, upstream)))
    return found


async def test_a_label_is_kept_with_its_texts_and_its_tenant(tmp_path: Path) -> None:
    clock = FakeClock()
    archive = archive_in(tmp_path, clock)
    archive.add("default", judged_of(entry=entry_of(question="one?"), question="two?"), Label.RIGHT)
    archive.add("default", judged_of(entry=entry_of(question="one?"), question="three?"), Label.WRONG)
    archive.add("default", judged_of(question="four?"), Label.UNDECIDED)
    archive.add("other", judged_of(question="five?"), Label.RIGHT)
    await archive.flush()
    at = clock.wall()
    assert read_labels(tmp_path, at) == [
        (at, at + 30 * DAY, "default", "acme", "one?", "two?", True, ()),
        (at, at + 30 * DAY, "default", "acme", "one?", "three?", False, ()),
    ]
    assert read_labels(tmp_path, at, "other") == []
    assert [path.stat().st_mode & 0o077 for path in (tmp_path / FOLDER, *(tmp_path / FOLDER).iterdir())] == [0, 0]


@pytest.mark.parametrize("more", ["", ", learn: on", ", learn: off"])
async def test_without_the_setting_no_text_is_kept(more: str, tmp_path: Path) -> None:
    archive = archive_in(tmp_path, FakeClock(), more)
    archive.add("default", judged_of(), Label.RIGHT)
    await archive.flush()
    assert not (tmp_path / FOLDER).exists()


async def test_rows_end_after_the_time_and_their_files_with_them(tmp_path: Path) -> None:
    clock = FakeClock()
    archive = archive_in(tmp_path, clock)
    archive.add("default", judged_of(), Label.RIGHT)
    await archive.flush()
    clock.advance(29 * DAY)
    assert len(read_labels(tmp_path, clock.wall())) == 1
    clock.advance(2 * DAY)
    assert read_labels(tmp_path, clock.wall()) == []
    later = archive_in(tmp_path, clock)
    later.add("default", judged_of(), Label.RIGHT)
    await later.flush()
    assert len(label_archive.files(tmp_path / FOLDER)) == 1


async def test_the_oldest_files_go_when_there_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_archive, "SEGMENT_BYTES", 100)
    monkeypatch.setattr(label_archive, "MAX_BYTES", 1000)
    clock = FakeClock()
    archive = archive_in(tmp_path, clock)
    for number in range(40):
        archive.add("default", judged_of(question=f"{number}"), Label.RIGHT)
        await archive.flush()
        clock.advance(1.0)
    rows = read_labels(tmp_path, clock.wall())
    assert [row[5] for row in rows] == [str(number) for number in range(40 - len(rows), 40)]
    assert 3 < len(rows) < 20


async def test_more_than_the_buffer_holds_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_archive, "MAX_BUFFERED", 3)
    archive = archive_in(tmp_path, clock := FakeClock())
    for _ in range(5):
        archive.add("default", judged_of(), Label.RIGHT)
    await archive.flush()
    assert len(read_labels(tmp_path, clock.wall())) == 3


async def test_a_row_that_was_cut_off_hides_no_other(tmp_path: Path) -> None:
    archive = archive_in(tmp_path, clock := FakeClock())
    archive.add("default", judged_of(), Label.RIGHT)
    await archive.flush()
    (path,) = label_archive.files(tmp_path / FOLDER)
    path.write_bytes(path.read_bytes() + msgpack.packb((1.0, 2.0, "default"))[:-3])
    assert len(read_labels(tmp_path, clock.wall())) == 1


async def test_a_full_disk_stops_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    archive = archive_in(tmp_path, FakeClock())
    archive.add("default", judged_of(question="a secret"), Label.RIGHT)
    await archive.flush()
    assert "labels cannot be kept" in caplog.text
    assert "a secret" not in caplog.text


async def test_a_compared_miss_is_kept_by_the_gateway(upstream: Upstream, tmp_path: Path) -> None:
    upstream.answer = answering(same)
    text = policy(", learn: {keep: 1d}", "max_wrong_hits: 1%")
    async with gateway_of(config(tmp_path, upstream), text) as served:
        await served.chat(STORED)
        await served.chat(ASKED)
        await until(lambda: served.gateway.parts.space.comparisons.idle)
    ((*_, stored, asked, right, _),) = read_labels(tmp_path, time.time())
    assert (STORED in stored, ASKED in asked, right) == (True, True, True)
