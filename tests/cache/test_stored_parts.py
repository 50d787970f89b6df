"""Every part that stores something of requests is declared, and each command says which of them it does not reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gateway.adapters.redis.keyspace import PREFIX
from gateway.cache.stored_parts import (
    MESSAGES,
    PARTS,
    UNRELATED,
    Reach,
    StoredCommand,
    StoredParts,
    UnreachedPart,
    not_reached,
)
from gateway.cache.threshold.wrong_hits import Label
from gateway.files import unowned_dirs
from gateway.private_files import OWN
from tests.features.erasure.test_erasure import EVERYTHING_KEPT, SECRET, bytes_below, erase, purge
from tests.features.jobs.asking import KEY, chat, main_of, over
from tests.features.jobs.test_batches import client_of, create, ended, line
from tests.fixtures.entries import entry_of, judged_of
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream

SECURITY = Path("docs/security.md")


def owners(name: str, patterns: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """Return the parts that a name belongs to, or the pattern of `UNRELATED`."""
    found = [part for part, names in patterns if any(fnmatchcase(name, each) for each in names)]
    return found or [each for each in UNRELATED if fnmatchcase(name, each)]


async def fill(served: Served) -> None:
    """Use each feature that stores something."""
    for i in range(3):
        await served.chat(f"what is the plan of alice {i}", user="alice")
    body = {"path": "/v1/chat/completions", "body": chat("a job of alice", user="alice")}
    await over(served, (await served.post("/v1/jobs", body)).json["id"])
    async with client_of(served) as client:
        await ended(client, (await create(client, line(0), line(1))).id)
    parts = served.gateway.parts
    parts.label_archive.add("default", judged_of(entry=entry_of(question="a"), question="b"), Label.RIGHT)
    await parts.label_archive.flush()
    await parts.recorder.flush()
    await served.gateway.stores.redis.add_links(["a"])
    await served.gateway.stores.redis.add_counterexample("b")
    await parts.space.learning.save()
    await purge(served, tags=["x"])
    await erase(served, "user:nobody")


@pytest.mark.parametrize("kind", ["embedded", "shared"])
async def test_every_key_and_file_of_a_busy_gateway_belongs_to_a_part(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path, kind: str
) -> None:
    store = {"url": outside_store.url, "erasure_key_env": "ERASURE"} if kind == "shared" else {}
    jobs = {"batches": True, "key_env": "JOBS_KEY"}
    config = config_of(tmp_path, main_of(upstream), store=store, jobs=jobs)
    async with gateway_of(config, EVERYTHING_KEPT, {**KEY, "ERASURE": SECRET}) as served:
        await fill(served)
        keys = [key.decode() for key in await served.gateway.stores.redis.send("KEYS", "*")]
    assert len(keys) > 10
    by_key = [(part.name, part.keys) for part in PARTS]
    by_file = [(part.name, part.files) for part in PARTS]
    for key in keys:
        assert key.startswith(PREFIX)
        assert len(owners(key.removeprefix(PREFIX), by_key)) == 1, f"{key}: declare it in cache/stored_parts.py"
    for path in tmp_path.iterdir():
        assert len(owners(path.name, by_file)) == 1, f"{path.name}: declare it in cache/stored_parts.py"


def test_every_name_in_the_data_folder_belongs_to_a_part() -> None:
    by_file = [(part.name, part.files) for part in PARTS]
    assert [name for name in OWN if len(owners(name, by_file)) != 1] == []


def test_a_registry_without_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one object for each stored part, got messages"):
        StoredParts(UnreachedPart(MESSAGES, exists=True))


def test_a_command_is_a_field_of_what_reaches_a_part() -> None:
    assert [field.name for field in fields(Reach)] == [command.value for command in StoredCommand]
    for part in PARTS:
        for command in StoredCommand:
            assert isinstance(getattr(part.reach, command), str)
    assert not_reached(StoredCommand.ERASE) == [
        "not reached: messages between gateways (they have embeddings, and no texts, until newer ones take their place)"
    ]


def test_the_documentation_says_what_each_command_does_not_reach() -> None:
    page = SECURITY.read_text()
    for part in PARTS:
        cells = [getattr(part.reach, command) or "yes" for command in StoredCommand]
        assert f"| {part.what} | {' | '.join(cells)} |" in page


async def test_reports_name_what_they_do_not_reach(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    store = {"url": outside_store.url, "erasure_key_env": "ERASURE"}
    async with gateway_of(
        config_of(tmp_path, main_of(upstream), store=store), EVERYTHING_KEPT, {"ERASURE": SECRET}
    ) as served:
        assert (await purge(served, all=True))["not_reached"] == not_reached(StoredCommand.PURGE)
        notes = (await erase(served, "user:alice"))["report"]["notes"]
        assert set(not_reached(StoredCommand.ERASE)) <= set(notes)
        async with served.session.post(served.admin_url + "/admin/cache/explain", json=chat("hello")) as response:
            if response.status == 200 and "route" in (found := await response.json()):
                assert found["not_reached"] == not_reached(StoredCommand.EXPLAIN)


async def test_an_erasure_reaches_folders_that_no_process_has_and_files_of_cut_off_writes(
    upstream: Upstream, tmp_path: Path
) -> None:
    """The number of workers has changed, and a rewrite was killed before it replaced its file."""
    worker = tmp_path / "workers" / "3"
    async with gateway_of(config_of(worker, main_of(upstream)), EVERYTHING_KEPT) as served:
        parts = served.gateway.parts
        await served.chat("the canary of alice", user="alice")
        judged = judged_of(entry=entry_of(question="the canary of alice"), question="the canary of alice")
        assert parts.subjects is not None
        judged.subjects = parts.subjects.of_request("alice", "")
        parts.label_archive.add("default", judged, Label.RIGHT)
    for name in ("traffic", "labels", "index"):
        (tmp_path / name).mkdir()
    left = [
        tmp_path / "traffic" / ".000000000000001.traffic.new",
        tmp_path / "labels" / ".000000000000001-7.msgpack.new",
        tmp_path / "index" / "checkpoint.new",
        tmp_path / "index" / "former",
        worker / "traffic" / ".000000000000001.traffic.new",
        worker / "index" / "checkpoint",
    ]
    folders = ["traffic", "labels", "index", "workers/3/traffic", "workers/3/labels", "workers/3/index"]
    async with gateway_of(config_of(tmp_path, main_of(upstream)), EVERYTHING_KEPT) as served:
        for path in left:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"the canary of alice")
        assert b"canary" in await asyncio.to_thread(bytes_below, tmp_path, folders)
        counts = (await erase(served, "user:alice"))["report"]["counts"]
        assert (counts["traffic"], counts["labels"]) == (1, 1)
        assert b"canary" not in await asyncio.to_thread(bytes_below, tmp_path, folders)


@pytest.mark.parametrize(
    ("own", "workers", "expected"),
    [
        (".", 1, ["workers/0", "workers/1", "workers/2"]),
        ("workers/0", 2, [".", "workers/2"]),
        ("workers/0", 4, ["."]),
        ("workers/1", 2, []),
    ],
)
def test_one_process_erases_the_folders_that_nobody_has(
    tmp_path: Path, own: str, workers: int, expected: list[str]
) -> None:
    for number in range(3):
        (tmp_path / "workers" / str(number)).mkdir(parents=True)
    assert unowned_dirs(tmp_path / own, workers) == [tmp_path / name for name in expected]
