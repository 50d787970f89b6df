"""Every endpoint of the admin port has a role, and what acts is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.admin.middleware import AUDITED_GETS, READ_ONLY_POSTS, ROLES, is_audited, is_page
from gateway.principal import Role
from gateway.steps.authenticate import BURST, INTERVAL_S, AuthThrottle, network_of
from tests.admin.test_admin_port import TOKEN, get, metrics
from tests.admin.test_admin_port import guarded as guarded
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served


def endpoints(served: Served) -> set[str]:
    runner = served.gateway.admin_port._runner
    assert runner is not None
    found = set()
    for route in runner.app.router.routes():
        assert route.resource is not None
        found.add(f"{'GET' if route.method == 'HEAD' else route.method} {route.resource.canonical}")
    return found


async def test_every_endpoint_has_a_role_and_every_role_an_endpoint(served: Served) -> None:
    assert {each for each in endpoints(served) if not is_page(each.split()[1])} == set(ROLES)


def test_what_acts_and_what_looks_are_endpoints() -> None:
    assert set(ROLES) >= READ_ONLY_POSTS | AUDITED_GETS
    assert all(endpoint.startswith("POST ") for endpoint in READ_ONLY_POSTS)
    for endpoint, role in ROLES.items():
        assert role is not Role.USE or not is_audited(endpoint), "who may only use changes nothing"


async def test_an_endpoint_without_a_role_is_nobodys(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ROLES, "GET /admin/stats")  # type: ignore[arg-type]
    answer = await get(served, "/admin/stats")
    assert (answer.status, answer.json) == (403, {"error": "nobody may do this, loopback has admin"})


def test_a_role_covers_those_before_it() -> None:
    roles = list(Role)
    assert roles == [Role.USE, Role.OPERATE, Role.ADMIN]
    for i, role in enumerate(roles):
        assert [role.covers(needed) for needed in roles] == [j <= i for j in range(3)]


async def test_whoami_says_who_one_is(served: Served) -> None:
    assert (await get(served, "/admin/whoami")).json == {
        "name": "loopback", "role": "admin", "by": "loopback", "tenant": None,
    }  # fmt: skip


async def test_whoami_says_that_the_token_has_come_in(guarded: Served) -> None:
    assert (await get(guarded, "/admin/whoami")).status == 401
    answer = await get(guarded, "/admin/whoami", Authorization=f"Bearer {TOKEN}")
    assert (answer.json["name"], answer.json["role"]) == ("token", "admin")


async def test_what_is_done_is_in_the_file_and_in_the_store(guarded: Served, tmp_path: Path) -> None:
    token = {"Authorization": f"Bearer {TOKEN}"}
    session, url = guarded.session, guarded.admin_url
    async with session.post(url + "/admin/cache/purge", json={"tags": ["a"]}, headers=token) as response:
        assert response.status == 200
    async with session.post(url + "/admin/policy/validate", data=b"version: 1", headers=token) as response:
        assert response.status == 422
    async with session.post(url + "/admin/policy/rollback", headers=token) as response:
        assert response.status >= 400
    async with session.post(url + "/admin/nothing", headers=token) as response:
        assert response.status == 404
    assert (await get(guarded, "/admin/audit", Authorization="Bearer wrong")).status == 401
    shown = (await get(guarded, "/admin/audit", Authorization=f"Bearer {TOKEN}")).json
    assert shown["source"] == "store"
    assert [(e["did"], e["who"], e["outcome"]) for e in shown["entries"]] == [
        ("POST /admin/policy/rollback", "token", "failed"),
        ("POST /admin/cache/purge", "token", "done"),
    ]
    of_file = (await get(guarded, "/admin/audit?source=file&limit=1", Authorization=f"Bearer {TOKEN}")).json
    (entry,) = of_file["entries"]
    assert (entry["did"], entry["who"], entry["peer"], entry["status"]) == ("GET /admin/audit", None, "127.0.0.1", 401)
    written = (tmp_path / "audit.jsonl").read_text()
    assert len(written.splitlines()) == 3
    assert TOKEN not in written
    assert "wrong" not in written
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


async def test_guesses_are_bounded_and_a_right_one_does_not_count_then(
    guarded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    entrance = guarded.gateway.access.guard._authenticator
    monkeypatch.setattr(entrance, "_failures", AuthThrottle(FakeClock().monotonic))  # none is forgotten meanwhile
    for _ in range(BURST):
        assert (await get(guarded, "/metrics", Authorization="Bearer guess")).status == 401
    for guess in ("guess", TOKEN):
        answer = await get(guarded, "/metrics", Authorization=f"Bearer {guess}")
        assert answer.status == 429
        assert 1 <= int(answer.headers["Retry-After"]) <= INTERVAL_S
    failures = guarded.gateway.parts.telemetry.auth_failures.values
    assert failures == {("admin", "refused"): BURST, ("admin", "too-many"): 2}


async def test_who_shows_nothing_is_asked_and_not_counted(guarded: Served) -> None:
    for _ in range(BURST + 1):
        assert (await get(guarded, "/metrics")).status == 401
    assert guarded.gateway.parts.telemetry.auth_failures.values == {}


def test_a_failure_is_forgotten_after_its_interval() -> None:
    clock = FakeClock()
    failures = AuthThrottle(clock.monotonic)
    for _ in range(BURST):
        assert failures.wait_s("10.0.0.1") is None
        failures.failed("10.0.0.1")
    assert failures.wait_s("10.0.0.1") == INTERVAL_S
    assert failures.wait_s("10.0.0.2") is None
    clock.advance(INTERVAL_S)
    assert failures.wait_s("10.0.0.1") is None
    failures.failed("10.0.0.1")
    assert failures.wait_s("10.0.0.1") is not None


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_of_ipv6_a_network_counts_as_one(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_a_trail_that_cannot_be_written_is_in_the_log_and_counted(served: Served, tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    async with served.session.post(served.admin_url + "/admin/cache/purge", json={"all": True}) as response:
        assert response.status == 200
    given = await metrics(served)
    assert [(s.labels, s.value) for s in given["nearhit_audit_errors"].samples if s.name.endswith("_total")] == [
        ({"where": "file"}, 1)
    ]


async def test_a_request_to_nowhere_takes_credentials_all_the_same(guarded: Served) -> None:
    assert (await get(guarded, "/none-such")).status == 401
