"""Jobs through a real gateway: accepted at once, answered later, seen by who made them alone."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.config import Config
from gateway.errors import StartupError
from gateway.features.jobs.redis_jobs import RedisJobs
from tests.features.jobs.asking import ALICE, BOB, KEY, chat, delete, jobs_of, main_of, over, submit
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.stores import outside_server
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected, wire_upstream


async def test_a_job_is_accepted_before_its_backend_answers_and_answered_after(
    served: Served, upstream: Upstream
) -> None:
    upstream.gate.clear()
    accepted = await served.post("/v1/jobs", {"path": "/v1/chat/completions", "body": chat("one")})
    assert accepted.status == 202
    job = accepted.json["id"]
    assert accepted.json["status"] == "queued"
    assert accepted.headers["Location"] == f"/v1/jobs/{job}"
    await upstream.arrived.wait()
    assert (await served.get(f"/v1/jobs/{job}")).json["status"] == "running"
    upstream.gate.set()
    done = await over(served, job)
    assert done["status"] == "completed"
    assert done["response"]["status"] == 200
    assert done["response"]["body"]["choices"][0]["message"]["content"] == "upstream answers: one"
    assert done["response"]["headers"]["cache-status"] == "nearhit; fwd=miss; stored"


async def test_any_path_with_prefer_respond_async_is_a_job(served: Served, upstream: Upstream) -> None:
    answer = await served.chat("two", headers={"Prefer": "wait=5, Respond-Async"})
    assert answer.status == 202
    assert answer.headers["Preference-Applied"] == "respond-async"
    assert (await over(served, answer.json["id"]))["status"] == "completed"
    opaque = await served.post("/v1/anything?x=1", b"bytes \xff", {"Prefer": "respond-async", "Content-Type": "a/b"})
    done = await over(served, opaque.json["id"])
    assert done["response"]["headers"]["x-echo-path"] == "/v1/anything?x=1"
    assert done["response"]["body"] is None
    assert done["response"]["body_base64"] == "Ynl0ZXMg/w=="


async def test_workers_that_fail_by_a_fault_are_begun_again(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim, failed = RedisJobs.claim, 0

    async def faulty(store: RedisJobs, *who: Any, **how: Any) -> Any:
        nonlocal failed
        if not failed:
            failed += 1
            raise ZeroDivisionError("a fault")
        return await claim(store, *who, **how)

    monkeypatch.setattr(RedisJobs, "claim", faulty)
    async with gateway_of(config_of(tmp_path, main_of(upstream)), NO_CACHE) as served:
        assert (await over(served, await submit(served, "one")))["status"] == "completed"
    assert failed == 1
    said = [record for record in caplog.records if record.getMessage().startswith("a part of the gateway has failed")]
    assert [record.fields["job"] for record in said] == ["JobWorkers.run"]  # type: ignore[attr-defined]


async def test_a_job_uses_the_caches(served: Served, upstream: Upstream) -> None:
    await served.chat("three")
    done = await over(served, await submit(served, "three"))
    assert done["response"]["headers"]["cache-status"].startswith("nearhit; hit; detail=exact")
    assert len(upstream.chats) == 1


async def test_a_stream_in_a_job_is_collected_whole(served: Served, upstream: Upstream) -> None:
    answer = await served.chat("four", headers={"Prefer": "respond-async"}, stream=True)
    done = await over(served, answer.json["id"])
    assert done["response"]["body"]["choices"][0]["message"]["content"] == "upstream answers: four"


async def test_a_secret_that_could_be_guessed_is_warned_of(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path, main_of(upstream), jobs={"key_env": "JOBS_KEY"})
    async with gateway_of(config, NO_CACHE, {"JOBS_KEY": "guess-me"}) as served:
        await over(served, await submit(served, "mine", ALICE), ALICE)
    (said,) = [line for line in caplog.records if "jobs.key_env" in line.message]
    assert said.levelname == "WARNING"
    assert vars(said)["fields"]["variable"] == "JOBS_KEY"
    assert "guess-me" not in caplog.text


async def test_only_the_tenant_that_made_a_job_sees_it_or_cancels_it(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream), jobs={"key_env": "JOBS_KEY"})
    async with gateway_of(config, NO_CACHE, KEY) as served:
        upstream.gate.clear()
        job = await submit(served, "mine", ALICE)
        for other in (BOB, {}):
            assert (await served.get(f"/v1/jobs/{job}", other)).status == 404
            assert (await served.get(f"/v1/jobs/{job}/events", other)).status == 404
            assert (await delete(served, f"/v1/jobs/{job}", other)).status == 404
        upstream.gate.set()
        assert (await over(served, job, ALICE))["status"] == "completed"
        assert upstream.calls[-1].headers["Authorization"] == "Bearer alice"


async def test_credentials_do_not_lie_in_the_store_in_clear(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream), jobs={"key_env": "JOBS_KEY", "workers": 0})
    async with gateway_of(config, NO_CACHE, KEY) as served:
        await submit(served, "sealed", {"Authorization": "Bearer canary-credential"})
        client = served.gateway.stores.redis._client
        for name in await client.keys("*"):
            kept = await client.dump(name)
            assert b"canary-credential" not in kept, name
        (record,) = [await client.hget(name, "record") for name in await client.keys("nearhit:1:jobs:job:*")]
        assert b"sealed" in record
        assert b"canary" not in record


@pytest.mark.parametrize("headers", [{"X-Litellm-Key": "canary-1"}, {"X-Goog-Iap-Jwt-Assertion": "canary-1"}, {}])
async def test_a_key_in_any_header_or_in_the_query_is_sealed_until_its_job_runs(
    upstream: Upstream, tmp_path: Path, headers: dict[str, str]
) -> None:
    target = "/v1/chat/completions" if headers else "/v1/chat/completions?key=canary-1&a=1"
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    config = config_of(tmp_path, main_of(upstream), jobs={"key_env": "JOBS_KEY", "workers": 0})
    async with gateway_of(config, NO_CACHE, KEY) as served:
        ways = [(target, body, {"Prefer": "respond-async"}), ("/v1/jobs", {"path": target, "body": body}, {})]
        for path, given, more in ways:
            owner = "?key=canary-1" if not headers and path == "/v1/jobs" else ""
            assert (await served.post(path + owner, given, {**headers, **more})).status == 202
        client = served.gateway.stores.redis._client
        for name in await client.keys("*"):
            assert b"canary" not in await client.dump(name), name
    running = config_of(tmp_path, main_of(upstream), jobs={"key_env": "JOBS_KEY"})
    async with gateway_of(running, NO_CACHE, KEY):
        await until(lambda: len(upstream.calls) == 2)
    for call in upstream.calls:
        assert "canary-1" in f"{call.path} {call.headers}"
        assert call.path.partition("?")[2] == ("" if headers else "key=canary-1&a=1")


async def test_with_an_embedded_store_nothing_has_to_be_configured(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first start makes a key; a job that waits for the next one is opened with the same key."""
    caplog.set_level("INFO", "nearhit.jobs")
    waiting = config_of(tmp_path, main_of(upstream), jobs={"workers": 0})
    async with gateway_of(waiting, NO_CACHE) as served:
        job = await submit(served, "mine", ALICE)
        accepted = await served.chat("later", headers={"Prefer": "respond-async", **ALICE})
        assert accepted.status == 202
    key = tmp_path / "jobs.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [line.message for line in caplog.records].count("a key was made that encrypts the credentials of jobs") == 1
    assert key.read_text().strip() not in caplog.text
    made = key.read_text()
    async with gateway_of(config_of(tmp_path, main_of(upstream)), NO_CACHE) as served:
        for each in (job, accepted.json["id"]):
            assert (await over(served, each, ALICE))["status"] == "completed"
    assert {call.headers["Authorization"] for call in upstream.calls} == {"Bearer alice"}
    assert key.read_text() == made
    assert list(tmp_path.glob("jobs.key*")) == [key]


async def test_a_damaged_key_stops_the_start(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "jobs.key").write_text("")
    with pytest.raises(StartupError, match=r"jobs\.key, is damaged: restore it"):
        async with gateway_of(config_of(tmp_path, main_of(upstream)), NO_CACHE):
            pass


async def test_without_a_key_a_shared_store_keeps_no_credentials_at_all(upstream: Upstream, tmp_path: Path) -> None:
    with outside_server(tmp_path) as server:
        config = config_of(tmp_path, main_of(upstream), store={"url": server.url})
        await refuses_credentials(config)
    assert not (tmp_path / "jobs.key").exists()


async def refuses_credentials(config: Config) -> None:
    async with gateway_of(config, NO_CACHE) as served:
        refused = await served.post("/v1/jobs", {"path": "/v1/chat/completions", "body": chat("x")}, ALICE)
        assert refused.status == 400
        assert "jobs.key_env" in refused.json["error"]["message"]
        assert (await over(served, await submit(served, "anonymous")))["status"] == "completed"


async def test_a_backend_with_a_key_of_its_own_needs_no_credentials_kept(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream, api_key_env="OWN"))
    async with gateway_of(config, NO_CACHE, {"OWN": "own-key"}) as served:
        assert (await over(served, await submit(served, "own", ALICE), ALICE))["status"] == "completed"
        assert upstream.calls[-1].headers["Authorization"] == "Bearer own-key"


async def test_the_same_idempotency_key_makes_one_job(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    first = await submit(served, "once", idempotency_key="k1")
    assert await submit(served, "once", {"Idempotency-Key": "k1"}) == first
    other = await served.post(
        "/v1/jobs", {"path": "/v1/chat/completions", "body": chat("another"), "idempotency_key": "k1"}
    )
    assert other.status == 422
    upstream.gate.set()
    assert (await over(served, first))["status"] == "completed"
    assert await submit(served, "once", idempotency_key="k1") == first
    assert len(upstream.chats) == 1
    assert upstream.chats[0].headers["Idempotency-Key"] == first


async def test_a_queued_job_is_cancelled_at_once_and_never_sent(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, main_of(upstream), jobs={"workers": 0}), NO_CACHE) as served:
        job = await submit(served, "never")
        assert (await delete(served, f"/v1/jobs/{job}")).json["status"] == "cancelled"
        assert (await served.get(f"/v1/jobs/{job}")).json["status"] == "cancelled"
        assert (await jobs_of(served).counts()).queued == 0
        assert await jobs_of(served).claim("w", 5, visibility_s=30, attempts=3, dead_s=60) == []


async def test_cancelling_a_running_job_cancels_the_call_upstream(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    job = await submit(served, "long")
    await upstream.arrived.wait()
    assert (await delete(served, f"/v1/jobs/{job}")).json["status"] == "cancelled"
    async with asyncio.timeout(120):
        await upstream.left.wait()
    assert (await served.get(f"/v1/jobs/{job}")).json["status"] == "cancelled"


async def test_an_error_of_the_client_is_a_failed_job_and_no_dead_letter(served: Served) -> None:
    answer = await served.post("/v1/jobs", {"path": "/v1/chat/completions", "body": {"model": 7}})
    done = await over(served, answer.json["id"])
    assert (done["status"], done["response"]["status"], done["attempts"]) == ("failed", 400, 1)
    assert (await jobs_of(served).counts()).dead == 0


async def test_what_fails_again_and_again_is_a_dead_letter_that_an_operator_may_retry(
    upstream: Upstream, tmp_path: Path
) -> None:
    async def broken(request: web.Request, call: dict) -> web.Response:
        return web.json_response({"error": {"message": "broken"}}, status=500)

    upstream.answer = broken
    config = config_of(tmp_path, main_of(upstream, retries={"budget": 0}), jobs={"attempts": 2})
    async with gateway_of(config, NO_CACHE) as served:
        job = await submit(served, "unlucky")
        done = await over(served, job)
        assert (done["status"], done["response"]["status"], done["attempts"]) == ("failed", 500, 2)
        assert done["error"].startswith("no answer in 2 attempts")
        async with served.session.get(served.admin_url + "/admin/jobs?state=dead") as listed:
            (row,) = (await listed.json())["jobs"]
        assert (row["id"], row["dead"]) == (job, True)
        upstream.answer = None
        async with served.session.post(served.admin_url + "/admin/jobs/retry", json={"job": job}) as retried:
            assert retried.status == 200
        assert (await over(served, job))["status"] == "completed"
        async with served.session.post(served.admin_url + "/admin/jobs/drop", json={"job": job}) as dropped:
            assert dropped.status == 404


async def test_a_backend_that_says_later_is_asked_later_and_that_is_no_attempt(
    upstream: Upstream, tmp_path: Path
) -> None:
    async def busy(request: web.Request, call: dict) -> web.Response:
        if len(upstream.calls) < 3:
            return web.json_response({"error": {"message": "later"}}, status=429, headers={"Retry-After": "0"})
        return web.json_response(completion(call, "at last"))

    upstream.answer = busy
    config = config_of(tmp_path, main_of(upstream, retries={"budget": 0}), jobs={"attempts": 1})
    async with gateway_of(config, NO_CACHE) as served:
        done = await over(served, await submit(served, "patient"))
        assert (done["status"], done["attempts"]) == ("completed", 1)
        assert served.gateway.parts.telemetry.jobs.values[("postponed",)] >= 1


async def test_a_full_queue_is_said_with_retry_after(upstream: Upstream, tmp_path: Path) -> None:
    jobs = {"workers": 0, "max_queued": 3, "max_queued_per_tenant": 2, "key_env": "JOBS_KEY"}
    async with gateway_of(config_of(tmp_path, main_of(upstream), jobs=jobs), NO_CACHE, KEY) as served:
        body = {"path": "/v1/chat/completions", "body": chat("x")}
        statuses = [(await served.post("/v1/jobs", body, who)).status for who in (ALICE, ALICE, ALICE, BOB)]
        assert statuses == [202, 202, 429, 202]
        full = await served.post("/v1/jobs", body, BOB)
        assert (full.status, full.headers["Retry-After"]) == (503, "5")


async def test_a_body_or_an_answer_beyond_its_bound_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream), jobs={"max_body": 200, "max_result": 300})
    async with gateway_of(config, NO_CACHE) as served:
        large = await served.post("/v1/jobs", {"path": "/v1/chat/completions", "body": chat("x" * 300)})
        assert large.status == 413
        done = await over(served, await submit(served, "y" * 80))
        assert done["status"] == "failed"
        assert "jobs.max_result" in done["error"]


async def test_what_is_no_job_is_refused_with_a_sentence(served: Served) -> None:
    for body in (
        {},
        {"path": "v1/chat/completions"},
        {"path": "/v1/jobs", "body": {}},
        {"path": "/v1/chat/completions", "body": {}, "prio": "high"},
        {"path": "/v1/chat/completions", "body": {}, "priority": "urgent"},
        {"path": "/v1/chat/completions", "body": {}, "method": "CONNECT"},
        {"path": "/v1/chat/completions", "body": {}, "webhook": "ftp://x"},
        {"path": "/v1/chat/completions", "body": {}, "idempotency_key": ""},
    ):
        answer = await served.post("/v1/jobs", body)
        assert answer.status == 400, body
        assert "expected" in answer.json["error"]["message"]
    assert (await served.get("/v1/jobs/job_1")).status == 404


async def test_jobs_can_be_turned_off(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, main_of(upstream), jobs={"enabled": False}), NO_CACHE) as served:
        assert (await served.post("/v1/jobs", {"path": "/v1/x"})).headers["x-echo-path"] == "/v1/jobs"
        assert (await served.chat("now", headers={"Prefer": "respond-async"})).status == 200


async def test_events_tell_each_change_and_then_the_result(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    job = await submit(served, "watched")
    await upstream.arrived.wait()
    async with served.session.get(f"{served.url}/v1/jobs/{job}/events") as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        first = await response.content.readuntil(b"\n\n")
        assert first.startswith(b"event: status\n")
        assert b'"running"' in first
        upstream.gate.set()
        rest = await response.content.read()
    assert rest.count(b"event: ") == 1
    assert rest.startswith(b"event: result\n")
    assert b"upstream answers: watched" in rest


async def test_a_stopped_gateway_gives_its_jobs_back(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream))
    upstream.gate.clear()
    async with gateway_of(config, NO_CACHE) as served:
        job = await submit(served, "carried over")
        await upstream.arrived.wait()
    upstream.gate.set()
    async with gateway_of(config, NO_CACHE) as served:
        done = await over(served, job)
    assert (done["status"], done["attempts"]) == ("completed", 1)
    await until(lambda: len(upstream.chats) == 2)


async def test_live_traffic_goes_before_jobs_at_a_backend(upstream: Upstream, tmp_path: Path) -> None:
    backend = main_of(upstream, max_concurrency=1, adaptive=False)
    async with gateway_of(config_of(tmp_path, backend), NO_CACHE) as served:
        upstream.gate.clear()
        jobs = [await submit(served, f"job {i}") for i in range(4)]
        pool = served.gateway.parts.pools["main"]
        await until(lambda: pool.occupancy.queued == 3)
        live = asyncio.create_task(served.chat("live"))
        await until(lambda: pool.occupancy.queued == 4)
        upstream.gate.set()
        assert (await live).status == 200
        for job in jobs:
            assert (await over(served, job))["status"] == "completed"
        assert [call.json["messages"][0]["content"] for call in upstream.chats][1] == "live"


async def test_a_job_has_no_latency_budget(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, main_of(upstream)), NO_CACHE) as served:
        job = await submit(served, "slow", {"x-latency-budget-ms": "0.001"})
        assert (await over(served, job))["status"] == "completed"


async def test_headers_that_are_no_utf_8_go_with_a_job_and_its_answer(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nX-Of-Model: caf\xe9\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    body = b"{}"
    head = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nPrefer: respond-async\r\nX-Of-Client: caf\xe9\r\n"
    head += b"Authorization: Bearer caf\xe9\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with wire_upstream() as upstream:
        upstream.answer(answer)
        config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, jobs={"key_env": "JOBS_KEY"})
        async with gateway_of(config, NO_CACHE, KEY) as served, connected(served.url) as wire:
            await wire.send(head + body)
            accepted = await wire.message()
            assert accepted.status == 202
            job = json.loads(accepted.body)["id"]
            shown = {}
            while shown.get("status") not in ("completed", "failed"):
                await wire.send(b"GET /v1/jobs/%b HTTP/1.1\r\nHost: x\r\n" % job.encode())
                await wire.send(b"Authorization: Bearer caf\xe9\r\n\r\n")
                shown = json.loads((await wire.message()).body)
        assert (shown["status"], shown["attempts"]) == ("completed", 1)
        assert shown["response"]["headers"]["x-of-model"] == "caf\ufffd"
        (sent,) = upstream.requests
        assert sent.all("x-of-client") == ["caf\xe9"]
        assert sent.all("authorization") == ["Bearer caf\xe9"]
