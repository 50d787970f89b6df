"""A policy is replaced while requests are served; a faulty one leaves the last good one in force."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.policy.load import load_policy
from gateway.config.policy.model import Policy
from gateway.config.policy.reloader import PolicyHolder
from tests.config.documents import config, policy, rule, text

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

GOOD = text(rule("default"))
CHANGED = text(rule("one", "{model: x}"), rule("default"))


class Reloads:
    """What was reported, and a way to wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[Policy | None, tuple[ConfigError, ...]]] = []
        self._reported = asyncio.Event()

    def __call__(self, policy: Policy | None, faults: tuple[ConfigError, ...]) -> None:
        self.seen.append((policy, faults))
        self._reported.set()

    async def until(self, first_route: str | None) -> None:
        """Waits for a report whose policy begins with this route; None: for one of faults."""
        async with asyncio.timeout(120):
            while not (self.seen and _first_route(self.seen[-1][0]) == first_route):
                self._reported.clear()
                await self._reported.wait()


def _first_route(policy: Policy | None) -> str | None:
    return policy.routes[0].name if policy else None


def holder(folder: Path) -> tuple[PolicyHolder, Reloads]:
    folder.mkdir(exist_ok=True)
    (folder / "default.yaml").write_text(GOOD)
    reloads = Reloads()
    return PolicyHolder(load_policy(folder, config()), lambda: load_policy(folder, config()), reloads), reloads


async def test_a_reload_puts_the_new_policy_in_force(tmp_path: Path) -> None:
    held, reloads = holder(tmp_path)
    (tmp_path / "default.yaml").write_text(CHANGED)
    assert await held.reload() == ()
    assert [route.name for route in held.current.routes] == ["one", "default"]
    assert reloads.seen == [(held.current, ())]


async def test_a_faulty_policy_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    held, reloads = holder(tmp_path)
    before = held.current
    (tmp_path / "default.yaml").write_text("version: 1\nroutes: [")
    faults = await held.reload()
    assert held.current is before
    assert faults
    assert held.faults == faults
    assert reloads.seen == [(None, faults)]
    (tmp_path / "default.yaml").write_text(GOOD)
    assert await held.reload() == held.faults == ()


async def test_no_policy_at_all_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    held, _ = holder(tmp_path / "policies")
    shutil.rmtree(tmp_path / "policies")
    assert await held.reload()
    assert [route.name for route in held.current.routes] == ["default"]


async def test_a_checked_policy_can_be_put_in_force_directly(tmp_path: Path) -> None:
    held, reloads = holder(tmp_path)
    other = policy(rule("one", "{model: x}"))
    held.replace(other)
    assert held.current is other
    assert reloads.seen == [(other, ())]


async def watching(folder: Path, drive: Callable[[PolicyHolder, Reloads], object]) -> None:
    held, reloads = holder(folder)
    task = asyncio.create_task(held.watch(folder))
    try:
        await drive(held, reloads)  # type: ignore[misc]
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_saved_file_is_in_force_however_the_editor_saves_it(tmp_path: Path) -> None:
    folder = tmp_path / "policies"

    async def drive(held: PolicyHolder, reloads: Reloads) -> None:
        (folder / "default.yaml").write_text(CHANGED)
        await reloads.until("one")
        assert held.current.routes[0].name == "one"

        (folder / ".default.yaml.swp").write_text("routes: [")
        (folder / "new").write_text(GOOD)
        (folder / "new").replace(folder / "default.yaml")
        await reloads.until("default")
        assert held.current.routes[0].name == "default"

        (folder / "default.yaml").write_text("routes: [")
        await reloads.until(None)
        assert held.current.routes[0].name == "default"

    await watching(folder, drive)


async def test_a_volume_of_kubernetes_is_in_force_when_its_link_is_swapped(tmp_path: Path) -> None:
    """As the kubelet writes a ConfigMap: files are links through `..data`, a link that is renamed over."""
    folder = tmp_path / "policies"

    def write(version: str, content: str) -> None:
        (folder / version).mkdir(parents=True)
        (folder / version / "default.yaml").write_text(content)
        (folder / "..data_tmp").symlink_to(version)
        (folder / "..data_tmp").replace(folder / "..data")

    async def drive(held: PolicyHolder, reloads: Reloads) -> None:
        (folder / "default.yaml").unlink()
        write("..2026_01", GOOD)
        (folder / "default.yaml").symlink_to("..data/default.yaml")
        write("..2026_02", CHANGED)
        await reloads.until("one")
        shutil.rmtree(folder / "..2026_01")
        write("..2026_03", GOOD)
        await reloads.until("default")
        assert held.current.routes[0].name == "default"

    await watching(folder, drive)


async def test_the_folder_may_go_away_and_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "policies"

    async def drive(held: PolicyHolder, reloads: Reloads) -> None:
        (folder / "default.yaml").write_text(CHANGED)
        await reloads.until("one")
        shutil.rmtree(folder)
        await reloads.until(None)
        assert held.current.routes[0].name == "one"
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        (fresh / "default.yaml").write_text(GOOD)
        fresh.rename(folder)
        await reloads.until("default")
        assert held.current.routes[0].name == "default"
        (folder / "default.yaml").write_text(CHANGED)
        await reloads.until("one")
        assert held.current.routes[0].name == "one"

    await watching(folder, drive)
