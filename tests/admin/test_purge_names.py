"""A removal that names what nothing is called: done as it was asked for, and told, as it is a slip as a rule."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.cache import MAX_LISTED_NAMES, unknown_name_message
from gateway.config.key_format import digest_of
from tests.admin.keys import ADMIN, admin, bearer, create, keyed
from tests.admin.test_purge import PLAIN, purge
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of, recovered, store_pid
from tests.fixtures.upstream import Upstream

NO_ROUTE = "no route of the policy in force is called {} (there are: {})"
NO_BACKEND = "no backend of the configuration is called {} (there are: {})"
NO_TENANT = "no tenant with a key is called {} (there are: {})"
OF_KEYS = "sk-of-the-configuration"


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    backends = {name: {"adapter": "openai", "url": upstream.url} for name in ("main", "next")}
    async with gateway_of(config_of(tmp_path, backends), PLAIN) as gateway:
        yield gateway


async def notes(served: Served, **conditions: Any) -> list[str]:
    """The same from a look and from a removal."""
    looked, done = [await purge(served, **conditions, **more) for more in ({"dry_run": True}, {})]
    assert (looked.status, done.status) == (200, 200)
    assert looked.json["notes"] == done.json["notes"]
    said: list[str] = done.json["notes"]
    return said


async def test_names_that_nothing_has_are_told_with_those_that_there_are(served: Served) -> None:
    assert await notes(served, route="suport") == [NO_ROUTE.format("'suport'", "support, default")]
    assert await notes(served, backend="mian") == [NO_BACKEND.format("'mian'", "main, next")]
    both = await notes(served, route="x\x1b[31m", backend="y", tags=["a"])
    assert both == [NO_ROUTE.format(r"'x\x1b[31m'", "support, default"), NO_BACKEND.format("'y'", "main, next")]


async def test_names_that_there_are_and_what_has_no_list_of_names_are_not(served: Served) -> None:
    for conditions in ({"route": "support"}, {"backend": "next"}, {"all": True}, {"tags": ["x"]}, {"model": "x"}):
        assert await notes(served, **conditions) == []
    assert await notes(served, tenant="acme") == [], "tenants are hashes of credentials here"


async def test_answers_of_a_route_that_the_policy_no_longer_has_go_and_it_is_told(
    upstream: Upstream, tmp_path: Path
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, PLAIN) as served:
        await served.chat("one", headers={"x-app": "support"})
    async with gateway_of(config, EXACT_CACHE) as served:
        await recovered(served)
        answer = await purge(served, route="support")
    assert answer.json["removed"] == 1
    assert answer.json["notes"] == [NO_ROUTE.format("'support'", "default")]


async def test_tenants_are_known_by_the_keys_of_the_configuration_and_the_store(
    upstream: Upstream, tmp_path: Path
) -> None:
    config = keyed(tmp_path, upstream, auth={"keys": {"old": [digest_of(OF_KEYS)]}})
    async with gateway_of(config, EXACT_CACHE, ADMIN) as served:
        made = await create(served, tenant="beta")
        for key in (OF_KEYS, made["key"]):
            assert (await served.chat("one", headers=bearer(key))).status == 200

        async def purged(tenant: str) -> tuple[int, list[str]]:
            said = (await admin(served, "POST", "/admin/cache/purge", {"tenant": tenant})).json
            return said["removed"], said["notes"]

        assert await purged("betta") == (0, [NO_TENANT.format("'betta'", "beta, old")])
        await admin(served, "POST", f"/admin/keys/{made['id']}/revoke")
        assert await purged("beta") == (1, []), "also where its key has ended"
        assert await purged("old") == (1, [])


@pytest.mark.usefixtures("killed_for_good")
async def test_a_removal_that_the_store_could_not_be_told_says_what_it_can(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(keyed(tmp_path, upstream), EXACT_CACHE, ADMIN) as served:
        os.kill(store_pid(served), 9)
        answer = await admin(served, "POST", "/admin/cache/purge", {"route": "x", "tenant": "y"})
        assert (answer.status, answer.json["recorded"]) == (503, False)
        assert answer.json["notes"] == [NO_ROUTE.format("'x'", "default")], "who has keys is in the store"


def test_a_long_list_is_cut_and_an_empty_one_is_said_to_be() -> None:
    known = [f"n{i}" for i in range(MAX_LISTED_NAMES + 5)]
    said = unknown_name_message("thing", "x" * 500, known)
    assert said is not None
    assert said.endswith(f"n{MAX_LISTED_NAMES - 1} and 5 more)")
    assert len(said) < 250
    whole = unknown_name_message("thing", "x", known[:MAX_LISTED_NAMES])
    assert whole is not None
    assert whole.endswith(f"n{MAX_LISTED_NAMES - 1})")
    assert unknown_name_message("thing", "x", ["a", "b"]) == "no thing is called 'x' (there are: a, b)"
    assert unknown_name_message("thing", "x", []) == "no thing is called 'x' (there are: none)"
    for name, those in (("n1", known), (None, known), ("x", None)):
        assert unknown_name_message("thing", name, those) is None
