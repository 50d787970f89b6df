"""The erasure of one subject: its pure parts, and all places of a real gateway with a real store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.__main__ import main
from gateway.adapters.redis.append_only_file import OUTSIDE
from gateway.cache.bans import MAX_BANS, Ban, BanConditions, decode, encode, limit_bans
from gateway.cache.decoys import Decoys
from gateway.cache.erasure import GRACE_S, ErasureTarget, ErasureTraces, RecentErasures
from gateway.cache.feedback import Counterexamples, relation_of
from gateway.cache.label_archive import read_labels
from gateway.cache.links import Links, link_of
from gateway.cache.threshold.route_control import Evidence, LabelledLookup
from gateway.cache.threshold.wrong_hits import Label
from gateway.features.erasure.report import ReportInvalid, public_key, sign, verify
from gateway.steps.traffic_log.reader import read_traffic
from gateway.subjects import Subject, SubjectDigests, body_user, parse_subject, subject_key
from tests.features.jobs.asking import chat, main_of, over
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import entry_of, hexed, judged_of, vector_of
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

SECRET = "s" * 40
DIGESTS = SubjectDigests(subject_key(SECRET))
ALICE, BOB = DIGESTS.of("user", "alice"), DIGESTS.of("user", "bob")
EVERYTHING_KEPT = """
version: 1
routes:
  - name: default
    match: {}
    record: {prompts: on}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%, learn: {keep: 30d}}}
    route: {backend: main}
"""


# Pure parts


@pytest.mark.parametrize("text", ["", "alice", "user:", "team:a", ":a"])
def test_a_subject_has_a_kind_and_a_name(text: str) -> None:
    with pytest.raises(ValueError, match="expected user:NAME"):
        parse_subject(text)


def test_the_name_is_all_behind_the_first_colon() -> None:
    assert parse_subject("user:a:b") == Subject("user", "a:b")


@pytest.mark.parametrize(
    ("user", "key", "expected"),
    [
        (None, "", []),
        ("alice", "", [ALICE]),
        ("alice", "ci", [ALICE, DIGESTS.of("key", "ci")]),
        (None, "ci", [DIGESTS.of("key", "ci")]),
        ('["alice","bob"]', "", [ALICE, BOB]),
        ('["alice"', "", [DIGESTS.of("user", '["alice"')]),
    ],
)
def test_a_request_has_the_digests_of_those_it_names(user: str | None, key: str, expected: list[str]) -> None:
    assert list(DIGESTS.of_request(user, key)) == expected


def test_a_digest_needs_the_key_and_tells_kinds_apart() -> None:
    assert "alice" not in ALICE
    assert SubjectDigests(subject_key("t" * 40)).of("user", "alice") != ALICE
    assert ALICE[1:] != DIGESTS.of("key", "alice")[1:]


@pytest.mark.parametrize(
    ("body", "user"),
    [
        (b'{"user": "a"}', "a"),
        (b'{"user": "a", "safety_identifier": "b"}', '["a","b"]'),
        (b'{"metadata": {"user_id": "c"}}', "c"),
        (b'{"user": 1, "metadata": []}', None),
        (b'{"user": ', None),
        (b'["user"]', None),
        (b'{"x": 1}', None),
    ],
)
def test_the_body_of_a_job_names_users_in_any_dialect(body: bytes, user: str | None) -> None:
    assert body_user(body) == user


def test_a_ban_of_a_subject_covers_what_it_caused_and_travels() -> None:
    ban = Ban("1", 10.0, 20.0, BanConditions(tenant="acme", subjects=frozenset([ALICE])), erasure=True)
    assert decode(encode(ban), 0.0) == ban
    for subjects, tenant, covered in (([ALICE], "acme", True), ([BOB], "acme", False), ([ALICE, BOB], "b", False)):
        entry = entry_of(subjects=tuple(subjects), tenant=tenant, created=5.0, upstream_s=0.0)
        assert ban.covers(entry) is covered
    assert not ban.covers(entry_of(subjects=(ALICE,), created=11.0, upstream_s=0.0)), "asked later"


def test_many_erasures_become_one_and_not_a_ban_on_everything() -> None:
    bans = [
        Ban(str(i), float(i), 1e9, BanConditions(subjects=frozenset([f"u{i}"])), erasure=True)
        for i in range(MAX_BANS + 5)
    ]
    purge = Ban("purge", 3.5, 1e9, BanConditions(route="r"))
    limited = limit_bans([*bans, purge], now=0.0)
    assert len(limited) == 2
    (joined,) = [ban for ban in limited if ban.erasure]
    assert joined.conditions == BanConditions(subjects=frozenset(f"u{i}" for i in range(MAX_BANS + 5)))
    assert joined.at == MAX_BANS + 4
    assert purge in limited


def test_a_purge_of_everything_does_not_take_the_place_of_an_erasure() -> None:
    erasure = Ban("1", 1.0, 5.0, BanConditions(subjects=frozenset([ALICE])), erasure=True)
    purge = Ban("2", 2.0, 6.0, BanConditions())
    assert limit_bans([erasure, purge], now=0.0) == (erasure, purge)


def test_lookups_of_an_erased_subject_teach_nothing_for_a_while() -> None:
    clock = FakeClock()
    recent = RecentErasures(clock.wall)
    of_alice = judged_of(entry=entry_of(subjects=(ALICE,)))
    asked_by_alice, of_bob = judged_of(), judged_of(entry=entry_of(subjects=(BOB,)))
    asked_by_alice.subjects = (ALICE,)
    assert not recent.covers(of_alice)
    recent.add(ErasureTarget(frozenset([ALICE]), None, clock.wall()))
    assert [recent.covers(judged) for judged in (of_alice, asked_by_alice, of_bob)] == [True, True, False]
    clock.advance(GRACE_S + 1)
    assert not recent.covers(of_alice)


def test_pairs_are_found_by_the_entry_and_by_the_question() -> None:
    traces, scope = ErasureTraces(), hexed("scope")
    traces.add_entry(entry_of("gone", question="what of  alice?"), None)
    links = [
        link_of(scope, "another", hexed("gone"), 0.9),
        link_of(scope, "what of alice?", hexed("stays"), 0.9),
        link_of(scope, "another", hexed("stays"), 0.8),
    ]
    known, wrong = Links(), Counterexamples()
    known.add(link.key() for link in links)
    relations = [relation_of(scope, "what of  alice?", hexed("x")), relation_of(scope, "another", hexed("y"))]
    wrong.add(relation.key() for relation in relations)
    known.forget(traces.fingerprints, traces.questions)
    wrong.forget(traces.fingerprints, traces.questions)
    assert [link.fingerprint for link in known.find(scope, "another")] == [hexed("stays")]
    assert known.find(scope, "what of alice?") == []
    assert [relation in wrong for relation in relations] == [False, True]


def test_labels_and_decoys_without_a_name_are_found_by_their_vector() -> None:
    evidence, decoys = Evidence(capacity=4), Decoys()
    for i in range(6):
        evidence.add(LabelledLookup(vector_of(i), 0.5, 1.0))
    decoys.add(hexed("a"), vector_of(3))
    decoys.add(hexed("a"), vector_of(5))
    gone = np.stack([vector_of(3), vector_of(4), vector_of(9)])
    assert (evidence.forget(gone), len(evidence)) == (2, 2)
    assert decoys.forget_questions(gone) == 1
    assert evidence.shift(vector_of(3)) < 0.05 < evidence.shift(vector_of(5))
    evidence.add(LabelledLookup(vector_of(7), 0.5, 1.0))
    assert (len(evidence), evidence.shift(vector_of(7)) > 0.05) == (3, True)
    assert (decoys.repel(hexed("a"), vector_of(3), 0.5), decoys.repel(hexed("a"), vector_of(5), 0.5)) == (False, True)


def test_a_report_is_valid_until_it_is_changed() -> None:
    document = json.loads(json.dumps(sign({"subject": ALICE, "counts": {"entries": 3}}, SECRET)))
    assert verify(document, public_key(SECRET))["counts"] == {"entries": 3}
    for change, sentence in (
        ({"report": {**document["report"], "counts": {"entries": 4}}}, "was changed"),
        ({"signature": "zz"}, "was changed"),
        ({"public_key": "00"}, "another key"),
        ({"algorithm": "none"}, "algorithm"),
        ({"report": None}, "not a report"),
    ):
        with pytest.raises(ReportInvalid, match=sentence):
            verify({**document, **change}, public_key(SECRET))
    with pytest.raises(ReportInvalid, match="another key"):
        verify(document, public_key("t" * 40))


# A real gateway


async def erase(served: Served, subject: str, **more: Any) -> dict[str, Any]:
    body = {"subject": subject, **more}
    async with served.session.post(served.admin_url + "/admin/cache/erase", json=body) as response:
        answer = Answer(response.status, response.headers.copy(), await response.read())
    assert answer.status == 200, answer.body
    document: dict[str, Any] = answer.json
    return document


def bytes_below(folder: Path, names: Sequence[str]) -> bytes:
    """Return the bytes of all files below some folders of a gateway, which may replace files meanwhile."""
    parts = []
    for path in (path for name in names for path in (folder / name).rglob("*")):
        with suppress(OSError):  # folders, sockets, and files that are gone by now
            parts.append(path.read_bytes())
    return b"".join(parts)


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_of(config_of(tmp_path, main_of(upstream)), EVERYTHING_KEPT) as gateway:
        yield gateway


async def test_all_that_a_user_caused_is_gone_and_nothing_else(
    served: Served, upstream: Upstream, tmp_path: Path
) -> None:
    parts = served.gateway.parts
    for user in ("alice", "bob"):
        await served.chat(f"the secret plan of {user}", user=user)
        await served.chat(f"another matter of {user}", safety_identifier=user)
    jobs = {}
    for user in ("alice", "bob"):
        body = {"path": "/v1/chat/completions", "body": chat(f"a job of {user}", user=user)}
        jobs[user] = (await served.post("/v1/jobs", body)).json["id"]
        await over(served, jobs[user])
    judged = judged_of(entry=entry_of(question="kept of bob"), question="kept of alice")
    judged.subjects = (
        DIGESTS.of_request("alice", "") if parts.subjects is None else parts.subjects.of_request("alice", "")
    )
    parts.label_archive.add("default", judged, Label.RIGHT)
    await parts.label_archive.flush()
    parts.label_archive.add("default", judged_of(question="kept of bob"), Label.RIGHT)
    await parts.recorder.flush()
    assert b"alice" in bytes_below(tmp_path, ["traffic", "labels"])

    counted = await erase(served, "user:alice", dry_run=True)
    assert len(parts.store.bans) == 0
    document = await erase(served, "user:alice")
    counts = document["report"]["counts"]
    assert {**counted["report"]["counts"], "learned": 0} == {**counts, "learned": 0}
    assert {name: counts[name] for name in ("entries", "traffic", "labels", "jobs")} == {
        "entries": 3,
        "traffic": 3,
        "labels": 1,
        "jobs": 1,
    }
    assert "alice" not in json.dumps(document)
    assert not any(note.startswith("not reached: the append-only file") for note in document["report"]["notes"])

    await parts.recorder.flush()
    await parts.label_archive.flush()
    left = bytes_below(tmp_path, ["traffic", "labels", "store", "index"])
    assert b"alice" not in left, "nor in the append-only file of the store"
    assert b"kept of bob" in left
    kept = read_traffic("last-1h", tmp_path / "traffic", parts.clock.wall()).requests
    assert [row.prompt for row in kept] == ["the secret plan of bob", "another matter of bob", "a job of bob"]
    assert [row[5] for row in read_labels(tmp_path, parts.clock.wall())] == ["kept of bob"]
    assert (await served.get(f"/v1/jobs/{jobs['alice']}")).status == 404
    assert (await served.get(f"/v1/jobs/{jobs['bob']}")).status == 200
    assert parts.space.index.size == 3
    asked = len(upstream.chats)
    assert "hit" in (await served.chat("the secret plan of bob", user="bob")).cache_status
    assert "fwd=miss" in (await served.chat("the secret plan of alice", user="alice")).cache_status
    assert len(upstream.chats) == asked + 1
    again = await erase(served, "user:alice", tenant="somebody-else")
    assert again["report"]["counts"]["entries"] == 0
    assert (await erase(served, "tenant:anonymous"))["report"]["counts"]["jobs"] == 1
    assert parts.space.index.size == 0


async def purge(served: Served, **conditions: Any) -> dict[str, Any]:
    async with served.session.post(served.admin_url + "/admin/cache/purge", json=conditions) as response:
        outcome: dict[str, Any] = await response.json()
    return outcome


async def exported(served: Served) -> bytes:
    async with served.session.get(served.admin_url + "/admin/cache/export") as response:
        return await response.read()


async def imported(served: Served, lines: bytes) -> dict[str, Any]:
    async with served.session.post(served.admin_url + "/admin/cache/import", data=lines) as response:
        done: dict[str, Any] = await response.json()
    return done


async def test_an_erasure_finds_what_came_from_an_export(served: Served, upstream: Upstream) -> None:
    for user in ("alice", "bob"):
        await served.chat(f"the plan of {user}", user=user)
    lines = await exported(served)
    assert (await purge(served, all=True))["removed"] == 2
    assert (await imported(served, lines))["imported"] == 2
    assert "hit" in (await served.chat("the plan of alice", user="alice")).cache_status
    assert (await erase(served, "user:alice"))["report"]["counts"]["entries"] == 1
    assert "fwd=miss" in (await served.chat("the plan of alice", user="alice")).cache_status
    assert "hit" in (await served.chat("the plan of bob", user="bob")).cache_status


async def test_an_import_does_not_bring_back_what_was_erased(served: Served, upstream: Upstream) -> None:
    for user in ("alice", "bob"):
        await served.chat(f"the plan of {user}", user=user)
    lines = await exported(served)
    await erase(served, "user:alice")
    done = await imported(served, lines)
    assert (done["refused"], done["unchanged"]) == (1, 1)
    assert "subjects" in done["faults"][0]["error"]
    assert "fwd=miss" in (await served.chat("the plan of alice", user="alice")).cache_status


async def test_what_is_in_flight_is_neither_stored_nor_recorded(
    served: Served, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.gate.clear()
    asking = asyncio.create_task(served.chat("of alice in flight", user="alice"))
    body = {"path": "/v1/chat/completions", "body": chat("a job of alice that runs", user="alice")}
    job = (await served.post("/v1/jobs", body)).json["id"]
    await until(lambda: len(upstream.chats) == 2)
    assert (await erase(served, "user:alice"))["report"]["counts"]["jobs"] == 1
    upstream.gate.set()
    assert (await asking).status == 200
    assert (await served.get(f"/v1/jobs/{job}")).status == 404
    await served.chat("of bob", user="bob")
    await served.gateway.parts.recorder.flush()
    rows = read_traffic("last-1h", tmp_path / "traffic", served.gateway.parts.clock.wall()).requests
    assert [row.prompt for row in rows] == ["of bob"]
    assert "fwd=miss" in (await served.chat("of alice in flight", user="alice")).cache_status
    assert "hit" in (await served.chat("of alice in flight", user="alice")).cache_status, "asked after the erasure"


async def test_other_gateways_forget_the_entries_and_erase_their_own_files(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    store = {"url": outside_store.url, "erasure_key_env": "ERASURE"}
    configs = [config_of(tmp_path / name, main_of(upstream), store=store) for name in ("a", "b")]
    environ = {"ERASURE": SECRET}
    async with (
        gateway_of(configs[0], EVERYTHING_KEPT, environ) as first,
        gateway_of(configs[1], EVERYTHING_KEPT, environ) as second,
    ):
        await second.chat("of alice at the second", user="alice")
        await second.chat("of bob at the second", user="bob")
        await second.gateway.parts.recorder.flush()
        await until(lambda: first.gateway.parts.space.index.size == 2)
        report = (await erase(first, "user:alice"))["report"]
        assert report["counts"]["entries"] == 1
        assert OUTSIDE in report["notes"]
        await until(lambda: b"alice" not in bytes_below(tmp_path / "b", ["traffic"]))
        await until(lambda: second.gateway.parts.space.index.size == 1)
        assert "fwd=miss" in (await second.chat("of alice at the second", user="alice")).cache_status
        assert "hit" in (await second.chat("of bob at the second", user="bob")).cache_status


async def test_a_shared_store_without_the_secret_refuses(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    config = config_of(tmp_path, main_of(upstream), store={"url": outside_store.url})
    async with gateway_of(config, EVERYTHING_KEPT) as served:
        await served.chat("one", user="alice")
        url = served.admin_url + "/admin/cache/erase"
        async with served.session.post(url, json={"subject": "user:alice"}) as response:
            assert response.status == 400
            assert "store.erasure_key_env" in (await response.json())["error"]


async def test_the_commands(upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"keys": [{"env": "STORE_KEY"}]}
    config = config_of(tmp_path, main_of(upstream), store={"encryption": keys})
    report, elsewhere = tmp_path / "report.json", tmp_path / "elsewhere.json"
    file = tmp_path / "config.yaml"
    file.write_text(f"version: 1\ndata_dir: {tmp_path}\nbackends: {{main: {{adapter: openai, url: {upstream.url}}}}}\n")

    async def run(*arguments: object, admin: str | None = None) -> tuple[int, str]:
        command = ["cache", *map(str, arguments), "--config", str(file)]
        code = await asyncio.to_thread(main, [*command, *(["--admin", admin] if admin else [])])
        said = capsys.readouterr()
        return code, said.out + said.err

    async with gateway_of(config, EVERYTHING_KEPT, {"STORE_KEY": "k" * 32}) as served:
        await served.chat("encrypted text of alice", user="alice")
        found = await served.gateway.stores.redis.send("KEYS", "nearhit:1:entry:*")
        record = await served.gateway.stores.redis.send("HGET", found[0], "record")
        assert b"encrypted text" not in record
        code, said = await run("rekey", admin=served.admin_url)
        assert (code, said.startswith("0 rewritten")) == (0, True)
        assert (await run("erase", admin=served.admin_url))[0] == 2
        assert (await run("erase", "--subject", "alice", admin=served.admin_url))[0] == 2
        code, said = await run("erase", "--subject", "user:alice", "--dry-run", admin=served.admin_url)
        assert (code, "1  stored answers" in said, "would be erased" in said) == (0, True, True)
        code, said = await run("erase", "--subject", "user:alice", "--out", report, admin=served.admin_url)
        assert (code, said.splitlines()[-1].startswith("erased")) == (0, True), said
    assert report.stat().st_mode & 0o077 == 0
    assert (tmp_path / "erasure.key").stat().st_mode & 0o077 == 0
    code, said = await run("erase", "--verify", report, "--subject", "user:alice")
    assert (code, said.startswith("valid: an erasure of u")) == (0, True), said
    document = json.loads(report.read_bytes())
    assert (await run("erase", "--verify", report, "--public-key", document["public_key"]))[0] == 0
    assert (await run("erase", "--verify", report, "--subject", "user:bob"))[0] == 1
    document["report"]["counts"]["entries"] = 7
    elsewhere.write_text(json.dumps(document))
    code, said = await run("erase", "--verify", elsewhere)
    assert (code, "was changed" in said) == (1, True)
