"""API keys of the store, from their making to their end, on a gateway that runs."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.key_format import digest_of, new_key
from gateway.errors import StoreUnavailable
from gateway.features.keys.redis import RedisApiKeys
from gateway.steps.authenticate import BURST
from tests.admin.keys import ADMIN, AS_ADMIN, admin, bearer, create, is_hit, keyed
from tests.features.jobs.asking import over, submit
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import EXACT_CACHE, Served, fast_path, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Served]:
    static = {"keys": {"old": [digest_of("sk-of-the-configuration")]}}
    async with gateway_of(keyed(tmp_path, upstream, auth=static), EXACT_CACHE, ADMIN, clock) as gateway:
        yield gateway


async def test_a_key_opens_the_data_port_and_is_shown_once(served: Served, upstream: Upstream) -> None:
    made = await create(served)
    assert (await served.chat("hi", headers=bearer(made["key"]))).status == 200
    assert (await served.chat("ho", headers={"x-api-key": made["key"]})).status == 200
    shown = (await admin(served, "GET", f"/admin/keys/{made['id']}")).json
    assert (shown["name"], shown["tenant"], shown["role"], shown["state"]) == ("app", "acme", "use", "active")
    assert shown["created_by"] == "token"
    assert shown["secrets"][0]["hint"] == made["key"][-4:]
    listed = (await admin(served, "GET", "/admin/keys")).body.decode()
    for text in (json.dumps(shown), listed):
        assert made["key"] not in text
        assert digest_of(made["key"]) not in text


async def test_only_the_digest_of_a_key_is_kept(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        made = await create(served)
        await served.chat("hi", headers=bearer(made["key"]))
        await admin(served, "POST", f"/admin/keys/{made['key']}/revoke")
    assert made["key"] not in caplog.text
    assert made["key"] not in (tmp_path / "audit.jsonl").read_text()
    client = served.gateway.stores.redis._client
    for name in await client.keys("*"):
        assert made["key"].encode() not in await client.dump(name)


async def test_the_providers_key_goes_upstream_and_the_clients_never(served: Served, upstream: Upstream) -> None:
    key = (await create(served))["key"]
    for headers in (bearer(key), {"x-api-key": key}, {"api-key": key}):
        assert (await served.chat("hi", headers=headers, seed=len(upstream.calls))).status == 200
        assert (await served.get("/v1/anything", headers)).status == 200
    assert len(upstream.calls) == 6
    for call in upstream.calls:
        assert call.headers["Authorization"] == "Bearer the-providers-own"
        assert key not in str(call.headers)


async def test_keys_of_the_configuration_work_as_before(served: Served) -> None:
    key = bearer("sk-of-the-configuration")
    assert (await served.chat("hi", headers=key)).status == 200
    assert is_hit(await served.chat("hi", headers=key))
    assert served.gateway.parts.telemetry.key_lookups.values == {}


async def test_a_revoked_key_gets_no_more_hits_from_the_fast_path(served: Served, upstream: Upstream) -> None:
    """It answers the very same bytes without the other steps: it has to hear of it, too."""
    made = await create(served)
    for _ in range(3):
        answer = await served.chat("hi", headers=bearer(made["key"]))
    assert is_hit(answer)
    assert len(fast_path(served)._hits) == 1
    revoked = (await admin(served, "POST", f"/admin/keys/{made['id']}/revoke")).json
    assert (revoked["state"], revoked["durable"]) == ("revoked", True)
    refused = await served.chat("hi", headers=bearer(made["key"]))
    assert (refused.status, refused.json["error"]["message"]) == (401, "the API key was revoked")
    assert (await admin(served, "POST", f"/admin/keys/{made['id']}/revoke")).status == 400
    assert (await admin(served, "GET", "/admin/keys")).json["keys"] == []
    (ended,) = (await admin(served, "GET", "/admin/keys?state=revoked")).json["keys"]
    assert ended["id"] == made["id"]


async def test_a_key_that_is_known_costs_the_store_nothing(served: Served) -> None:
    made = await create(served)
    for i in range(20):
        assert (await served.chat(f"question {i % 4}", headers=bearer(made["key"]))).status == 200
    assert served.gateway.parts.telemetry.key_lookups.values == {("found",): 1}


async def test_a_key_ends_when_it_expires_also_in_the_fast_path(served: Served, clock: FakeClock) -> None:
    made = await create(served, expires="1h")
    for _ in range(3):
        await served.chat("hi", headers=bearer(made["key"]))
    clock.advance(3599)
    assert is_hit(await served.chat("hi", headers=bearer(made["key"])))
    clock.advance(1)
    refused = await served.chat("hi", headers=bearer(made["key"]))
    assert (refused.status, refused.json["error"]["message"]) == (401, "the API key has expired")
    longer = await admin(served, "POST", f"/admin/keys/{made['id']}", {"expires": "1d"})
    assert longer.json["state"] == "active"
    assert (await served.chat("hi", headers=bearer(made["key"]))).status == 200


async def test_both_texts_are_good_until_the_overlap_is_over(served: Served, clock: FakeClock) -> None:
    made = await create(served)
    path = f"/admin/keys/{made['id']}/rotate"
    rotated = (await admin(served, "POST", path, {"overlap": "10m"})).json
    assert rotated["id"] == made["id"]
    assert rotated["key"] != made["key"]
    for key in (made["key"], rotated["key"]):
        assert (await served.chat("hi", headers=bearer(key))).status == 200
    clock.advance(600)
    assert (await served.chat("hi", headers=bearer(made["key"]))).status == 401
    assert (await served.chat("hi", headers=bearer(rotated["key"]))).status == 200
    at_once = (await admin(served, "POST", path, {"overlap": "0s"})).json
    assert len(at_once["secrets"]) == 1
    assert (await served.chat("hi", headers=bearer(rotated["key"]))).status == 401
    assert (await served.chat("hi", headers=bearer(at_once["key"]))).status == 200


async def test_a_key_has_at_most_four_texts_at_once(served: Served) -> None:
    made = await create(served)
    path = f"/admin/keys/{made['id']}/rotate"
    answers = [await admin(served, "POST", path) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 400]
    assert "4 secrets of this key are good already" in answers[-1].json["error"]


async def test_a_key_of_some_models_gets_no_other_and_no_hit_of_another(served: Served, upstream: Upstream) -> None:
    wide, narrow = await create(served), await create(served, models=["small-*"])
    assert (await served.chat("hi", model="large-1", headers=bearer(wide["key"]))).status == 200
    for _ in range(2):
        assert (await served.chat("hi", model="small-1", headers=bearer(narrow["key"]))).status == 200
    refused = await served.chat("hi", model="large-1", headers=bearer(narrow["key"]))
    assert refused.status == 403
    assert refused.json["error"]["type"] == "permission_error"
    assert refused.json["error"]["message"] == "this API key is for the models small-*, not for 'large-1'"
    assert (await served.get("/v1/anything", bearer(narrow["key"]))).status == 403
    assert (await served.get("/v1/models", bearer(narrow["key"]))).status == 200
    await admin(served, "POST", f"/admin/keys/{narrow['id']}", {"models": []})
    assert is_hit(await served.chat("hi", model="large-1", headers=bearer(narrow["key"])))


async def test_limits_of_a_key_are_its_own_over_all_routes_and_texts(served: Served, upstream: Upstream) -> None:
    made = await create(served, limits=[{"requests": {"rate": "2/h"}}])
    other = await create(served)
    rotated = (await admin(served, "POST", f"/admin/keys/{made['id']}/rotate")).json
    first = await served.chat("one", headers=bearer(made["key"]))
    assert first.headers["RateLimit"].startswith('"requests-h";r=1')
    assert (await served.chat("two", headers=bearer(rotated["key"]))).status == 200
    refused = await served.chat("three", headers=bearer(made["key"]))
    assert refused.status == 429
    assert refused.json["error"]["message"].startswith(
        "the limit of 2 requests a hour for this key is reached: 0 left;"
    )
    assert is_hit(await served.chat("one", headers=bearer(made["key"]))), "hits are free unless it is said"
    assert (await served.chat("three", headers=bearer(other["key"]))).status == 200
    (seen,) = (await admin(served, "GET", "/admin/limits")).json["limits"]
    assert (seen["route"], seen["per"], seen["subject"]) == ("*", "key", made["id"])


async def test_a_budget_of_a_key_is_spent(served: Served) -> None:
    made = await create(served, limits={"cost": {"per_day": "11 USD"}})
    answers = [(await served.chat(f"q{i}", max_tokens=5, headers=bearer(made["key"]))).status for i in range(3)]
    assert answers == [200, 429, 429]


async def test_a_key_may_count_hits_too(served: Served) -> None:
    made = await create(served, limits=[{"requests": "3/h", "count_hits": "on"}])
    assert [(await served.chat("hi", headers=bearer(made["key"]))).status for _ in range(4)] == [200, 200, 200, 429]


async def test_a_job_is_held_to_its_key_when_it_runs(served: Served, upstream: Upstream) -> None:
    narrow = await create(served, models=["small-*"])
    headers = bearer(narrow["key"])
    refused = await over(served, await submit(served, "hi", headers), headers)
    assert (refused["status"], refused["response"]["status"]) == ("failed", 403)
    await admin(served, "POST", f"/admin/keys/{narrow['id']}", {"models": ["m"], "limits": {"requests": "1/h"}})
    done = await over(served, await submit(served, "hi", headers), headers)
    assert done["response"]["status"] == 200
    await submit(served, "ho", headers)
    await until(lambda: served.gateway.parts.telemetry.limited.values.get(("default", "requests")))
    assert len(upstream.calls) == 1, "it is told to come later"
    assert ":nearhit-key" not in upstream.calls[-1].headers


@pytest.mark.parametrize(
    ("headers", "reason", "sentence"),
    [
        ({}, "missing", "an API key is required"),
        (bearer("sk-none"), "unknown", "the API key is not known"),
        (bearer(new_key()[:-1]), "mistyped", "cut or mistyped"),
        (bearer(new_key()), "unknown", "the API key is not known"),
    ],
)
async def test_why_a_key_is_refused(served: Served, headers: dict[str, str], reason: str, sentence: str) -> None:
    refused = await served.chat("hi", headers=headers)
    assert refused.status == 401
    assert sentence in refused.json["error"]["message"]
    assert served.gateway.parts.telemetry.auth_failures.values == {("data", reason): 1}


async def test_guesses_are_bounded_and_known_keys_go_on(served: Served) -> None:
    made, later = await create(served), await create(served)
    await served.chat("hi", headers=bearer(made["key"]))
    for _ in range(BURST):
        assert (await served.chat("hi", headers=bearer(new_key()))).status == 401
    refused = await served.chat("hi", headers=bearer(new_key()))
    assert refused.status == 429
    assert refused.headers["Retry-After"] == "3"
    assert (await served.chat("hi", headers=bearer(made["key"]))).status == 200
    assert (await served.chat("hi", headers=bearer("sk-of-the-configuration"))).status == 200
    assert (await served.chat("hi", headers=bearer(later["key"]))).status == 429, "not looked up from this address now"
    assert served.gateway.parts.telemetry.key_lookups.values[("absent",)] == BURST


async def test_without_the_store_known_keys_go_on_for_their_grace(
    served: Served, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, unknown = await create(served), await create(served)
    await served.chat("hi", headers=bearer(made["key"]))

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the store failed")

    for name in ("version", "by_digest"):
        monkeypatch.setattr(RedisApiKeys, name, away)
    clock.advance(599)
    assert is_hit(await served.chat("hi", headers=bearer(made["key"])))
    refused = await served.chat("hi", headers=bearer(unknown["key"]))
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert (await served.chat("hi", headers=bearer("sk-of-the-configuration"))).status == 200
    clock.advance(2)
    assert (await served.chat("hi", headers=bearer(made["key"]))).status == 503
    assert (await served.chat("hi", headers=bearer("sk-of-the-configuration"))).status == 200
    assert served.gateway.parts.telemetry.key_lookups.values == {("found",): 1, ("kept",): 1, ("unavailable",): 2}


async def test_roles_open_what_they_are_for(served: Served) -> None:
    keys = {role: (await create(served, name=role, role=role))["key"] for role in ("use", "operate", "admin")}

    async def status(role: str, method: str, path: str) -> int:
        return (await admin(served, method, path, headers=bearer(keys[role]))).status

    for path, least in (("/admin/whoami", 0), ("/admin/stats", 1), ("/metrics", 1), ("/admin/keys", 2)):
        statuses = [await status(role, "GET", path) for role in keys]
        assert statuses == [403] * least + [200] * (3 - least), path
    assert (await admin(served, "GET", "/admin/whoami", headers=bearer(keys["operate"]))).json == {
        "name": "operate", "role": "operate", "by": "key", "tenant": "acme",
    }  # fmt: skip
    refused = await admin(served, "POST", "/admin/keys", {"name": "x", "tenant": "y"}, bearer(keys["operate"]))
    assert refused.json == {"error": "this takes the role admin, operate has operate"}
    (entry, *_) = (await admin(served, "GET", "/admin/audit")).json["entries"]
    assert (entry["who"], entry["by"], entry["did"]) == ("operate", "key", "POST /admin/keys")
    assert (entry["outcome"], entry["status"]) == ("refused", 403)
    assert (await served.chat("hi", headers=bearer(keys["operate"]))).status == 200


async def test_who_made_and_ended_a_key_is_in_the_trail(served: Served) -> None:
    made = await create(served)
    await admin(served, "POST", f"/admin/keys/{made['id']}/revoke")
    ended, begun = (await admin(served, "GET", "/admin/audit")).json["entries"]
    assert (begun["did"], begun["key"], begun["granted"]) == ("POST /admin/keys", made["id"], "use")
    assert (ended["did"], ended["of"]) == ("POST /admin/keys/{key}/revoke", {"key": made["id"]})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"tenant": "acme"}, "'name' is required"),
        ({"name": "a b", "tenant": "acme"}, "name: expected a name of letters"),
        ({"name": "a", "tenant": "acme", "role": "root"}, "role: expected one of: use, operate, admin"),
        ({"name": "a", "tenant": "acme", "modles": []}, "modles: unknown key, did you mean 'models'?"),
        ({"name": "a", "tenant": "acme", "expires": "1"}, "expires: expected"),
        (
            {"name": "a", "tenant": "acme", "limits": {"per": "user", "requests": "1/s"}},
            "per: a key's limits are its own",
        ),
        ({"name": "a", "tenant": "acme", "limits": {"requests": "often"}}, "expected a rate such as"),
        ([], "expected a JSON object of a key"),
    ],
)
async def test_what_cannot_be_meant_is_refused_with_a_sentence(served: Served, body: Any, sentence: str) -> None:
    answer = await admin(served, "POST", "/admin/keys", body)
    assert answer.status == 400
    assert sentence in answer.json["error"]


async def test_a_key_that_is_not_there_is_not_found(served: Served) -> None:
    for name in ("key_0123456789abcdef", "none", new_key()):
        answer = await admin(served, "GET", f"/admin/keys/{name}")
        assert answer.status == 404
        assert name not in answer.json["error"] or name == "key_0123456789abcdef"
    assert AS_ADMIN["Authorization"] not in answer.json["error"]


async def test_an_operator_s_key_opens_the_lookup_where_clients_need_none(upstream: Upstream, tmp_path: Path) -> None:
    config = keyed(tmp_path, upstream, auth={"mode": "passthrough"})
    async with gateway_of(config, EXACT_CACHE, ADMIN) as served:
        made = await create(served, role="operate")
        assert served.gateway.access.keys._lookup is None
        assert (await admin(served, "GET", "/admin/stats", headers=bearer(made["key"]))).status == 200
        assert served.gateway.access.keys._lookup is not None
        await admin(served, "POST", f"/admin/keys/{made['id']}/revoke")
        assert (await admin(served, "GET", "/admin/stats", headers=bearer(made["key"]))).status == 401
