"""`nearhit keys` and `nearhit audit` as an operator meets them, against a gateway that runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.__main__ import main
from tests.admin.keys import ADMIN, bearer, keyed
from tests.fixtures.gateways import EXACT_CACHE, Served, gateway_of
from tests.fixtures.upstream import Upstream


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setenv("ADMIN_TOKEN", ADMIN["ADMIN_TOKEN"])
    async with gateway_of(keyed(tmp_path, upstream), EXACT_CACHE, ADMIN) as gateway:
        yield gateway


async def test_a_key_from_its_making_to_its_end(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def nearhit(*arguments: str) -> str:
        place = ["--admin", served.admin_url, "--token-env", "ADMIN_TOKEN", "--config", str(tmp_path / "none.yaml")]
        code = await asyncio.to_thread(main, [*arguments, *place])
        said = capsys.readouterr()
        assert code in (0, 1, 2)
        return said.out + said.err

    terms = ("--models", "m*", "--expires", "90d", "--requests", "600/min", "--cost-per-day", "500 USD")
    key, line = (await nearhit("keys", "create", "ci", "--tenant", "acme", *terms)).splitlines()
    identity = line.split(": ")[1].split(",")[0]
    assert line == f"the key is shown only this once: {identity}, ci of tenant acme, role use"
    assert (await served.chat("hi", headers=bearer(key))).status == 200
    assert identity in await nearhit("keys", "list", "--tenant", "acme")
    assert await nearhit("keys", "list", "--tenant", "other") == "no keys\n"
    shown = await nearhit("keys", "show", identity)
    assert "models           m*" in shown
    assert "limits           requests 600/min, cost per_day 500 USD" in shown
    changed = json.loads(await nearhit("keys", "change", identity, "--all-models", "--no-limits", "--json"))
    assert (changed["models"], changed["limits"]) == ([], [])
    assert "nothing to change" in await nearhit("keys", "change", identity)
    assert "expires          never" in await nearhit("keys", "expire", identity, "--in", "off")
    rotated = (await nearhit("keys", "rotate", identity, "--overlap", "0s")).splitlines()[0]
    assert (await served.chat("hi", headers=bearer(key))).status == 401
    assert "is revoked, within a second on every gateway of the store\n" in await nearhit("keys", "revoke", identity)
    assert (await served.chat("hi", headers=bearer(rotated))).status == 401
    assert "revoked already" in await nearhit("keys", "revoke", identity)
    assert "there is no such key" in await nearhit("keys", "show", "ci")
    trail = (await nearhit("audit", "--limit", "20")).splitlines()
    done = [line.partition("/admin/keys")[2].split()[0] for line in trail]
    ends = ["/{key}/revoke", "/{key}/revoke", "/{key}/rotate", "/{key}", "/{key}"]
    assert done[:-1] == ends
    assert all("token (token)" in line for line in trail)
    assert key not in "".join(trail)
