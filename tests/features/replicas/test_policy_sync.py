"""What the admin port of one gateway puts in force is in force at all that are on its store: real gateways, a real
Valkey, a folder of files each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config.policy.history import Author
from gateway.features.replicas.policy_sync import should_adopt
from gateway.ports import PublishedPolicy
from tests.fixtures.gateways import BOTH_CACHES, config_of, gateway_of, recovered
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

FIRST, SECOND, THIRD = (BOTH_CACHES.replace("ttl: 1h", f"ttl: {hours}h") for hours in (1, 2, 3))
OPERATOR = Author("ada", "api", "longer")
FILE = "default.yaml"
LONG_AGO = 1_700_000_000.0
Start = Callable[..., Any]


@pytest.fixture
async def start(upstream: Upstream, tmp_path: Path, outside_store: OutsideServer) -> AsyncIterator[Start]:
    """Starts a gateway of that name, whose file was written long ago unless it is there already."""
    async with AsyncExitStack() as stack:

        async def started(name: str, policy: str = FIRST, backend: str = "main", folder: Path | None = None) -> Gateway:
            file = (folder or tmp_path / name / "policies") / FILE
            if not file.exists():
                write(file, policy, LONG_AGO)
            config = config_of(
                tmp_path / name,
                {backend: {"adapter": "openai", "url": upstream.url}},
                store={"url": outside_store.url, "timeout": "10s"},
            )
            served = await stack.enter_async_context(gateway_of(config, policy, policies=file.parent))
            await recovered(served)
            await until(lambda: served.gateway.parts.fleet.is_following)
            gateway: Gateway = served.gateway
            await gateway.policies.reload()  # a policy is known by its files' names, too
            return gateway

        yield started


def write(file: Path, policy: str, at: float) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(policy)
    os.utime(file, (at, at))


async def apply(gateway: Gateway, policy: str) -> str:
    staged, _ = await gateway.policies.apply(FILE, policy.encode(), OPERATOR, None)
    return staged.policy.hash


async def test_what_one_is_told_all_put_in_force(start: Start, tmp_path: Path) -> None:
    one, two = await start("one"), await start("two")
    told = await apply(one, SECOND)
    await until(lambda: two.policy.hash == told)
    assert (tmp_path / "two" / "policies" / FILE).read_text() == SECOND
    await until(lambda: two.policies.history.list_versions(1)[0]["hash"] == told)
    last = two.policies.history.list_versions(1)[0]
    assert (last["author"], last["via"], last["comment"]) == ("ada", "fleet", "longer")


async def test_it_is_taken_back_at_any_of_them(start: Start) -> None:
    one, two = await start("one"), await start("two")
    before = one.policy.hash
    told = await apply(one, SECOND)
    await until(lambda: two.policies.history.list_versions(1)[0]["hash"] == told)
    await two.policies.roll_back(None, OPERATOR, None)
    await until(lambda: one.policy.hash == before)


async def test_who_was_away_finds_it_at_the_start(start: Start) -> None:
    one = await start("one")
    await apply(one, SECOND)
    told = await apply(one, THIRD)
    two = await start("two")
    await until(lambda: two.policy.hash == told)


async def test_a_policy_of_its_own_stays(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    one, two = await start("one"), await start("two", THIRD)
    own = two.policy.hash
    await apply(one, SECOND)
    await until(lambda: "another gateway on this store has another policy in force" in caplog.messages)
    assert two.policy.hash == own


async def test_files_that_somebody_has_written_since_are_not_written_over(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = await start("one")
    own = one.policy.hash
    told = await apply(one, SECOND)
    write(tmp_path / "two" / "policies" / FILE, FIRST, LONG_AGO * 2)  # back to the first, on purpose
    two = await start("two")
    assert two.policy.hash == own
    await until(lambda: "another gateway on this store has another policy in force" in caplog.messages)
    assert (one.policy.hash, two.policy.hash) == (told, own)


async def test_what_is_saved_into_one_folder_stays_there(start: Start, tmp_path: Path) -> None:
    one, two = await start("one"), await start("two")
    before = one.policy.hash
    write(tmp_path / "one" / "policies" / FILE, SECOND, LONG_AGO)
    await one.policies.reload()
    told = await apply(two, THIRD)
    assert one.policy.hash not in (before, told)


async def test_gateways_with_one_folder_read_it_at_once(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    one, two = await start("one", folder=folder), await start("two", folder=folder)
    write(folder / FILE, SECOND, LONG_AGO)
    await one.policies.reload()
    await until(lambda: two.policy.hash == one.policy.hash)


async def test_a_policy_that_does_not_fit_is_said_and_not_taken(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    both = FIRST + "# the same for everybody\n"
    one = await start("one", both)
    two = await start("two", both)
    elsewhere = {"other": two.config.backends["main"]}  # it was started with another configuration
    two.policies._config = two.config.model_copy(update={"backends": elsewhere})
    own = two.policy.hash
    await apply(one, SECOND)
    await until(lambda: "the policy of the other gateways does not fit this one" in caplog.messages)
    assert two.policy.hash == own


def published(at: float = 100.0) -> PublishedPolicy:
    return PublishedPolicy("b", {FILE: SECOND}, "ada", "", at)


@pytest.mark.parametrize(
    ("own", "lineage", "by_hand_at", "follows"),
    [
        ("a", {"a"}, None, True),
        ("a", {"a"}, 99.0, True),  # the files are older than what was put in force
        ("a", {"a"}, 101.0, False),
        ("c", {"a"}, None, False),  # a policy of its own
        ("b", {"a", "b"}, None, False),  # it is in force already
        ("a", set(), None, False),
    ],
)
def test_who_follows(own: str, lineage: set[str], by_hand_at: float | None, follows: bool) -> None:
    assert should_adopt(published(), frozenset(lineage), own, by_hand_at) is follows
