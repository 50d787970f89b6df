"""A policy's life on the admin port: seen, tried, put in force, remembered, taken back; the files stay the truth."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.admin.policy_manager import PolicyManager, check_folder, file_contents, recover_pending_change
from gateway.app import running
from gateway.cli.serve import follow_policy
from gateway.config import Config
from gateway.config.policy import files as folder_module
from gateway.config.policy.files import PolicyFolder
from gateway.config.policy.history import Author, PolicyChange, Version
from tests.admin.test_admin_port import TOKEN
from tests.admin.test_admin_port import guarded as guarded
from tests.fixtures.gateways import Answer, Served, config_of
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected

DEFAULT = "version: 1\nroutes:\n  - {name: default, match: {}, route: {backend: main}}\n"
SUPPORT = "version: 1\nroutes:\n  - {name: support, match: {headers: {x-app: support}}, route: {backend: main}}\n"
CHANGED = DEFAULT.replace("name: default", "name: changed")
WRONG = "version: 1\nroutes:\n  - {name: default, match: {}, route: {backend: mian}}\n  - {nme: x}\n"


def config_in(path: Path, upstream: Upstream) -> Config:
    folder = path / "policies"
    folder.mkdir(exist_ok=True)
    if not list(folder.iterdir()):
        (folder / "default.yaml").write_text(DEFAULT)
    config = config_of(path / "data", {"main": {"adapter": "openai", "url": upstream.url}})
    return config.model_copy(update={"policies": folder})


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Served]:
    """As `nearhit serve` does it."""
    recover_pending_change(config, lambda: 0.0)
    policy = check_folder(config.policies, config)
    async with (
        running(config, policy, {}, policies=config.policies) as gateway,
        follow_policy(gateway),
        aiohttp.ClientSession() as session,
    ):
        yield Served(gateway, session)


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(config_in(tmp_path, upstream)) as served:
        yield served


async def send(served: Served, path: str, body: str | bytes | BytesIO = b"", **headers: str) -> Answer:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with served.session.post(served.admin_url + path, data=body, headers=given) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


async def get(served: Served, path: str) -> Answer:
    async with served.session.get(served.admin_url + path) as response:
        return Answer(response.status, response.headers.copy(), await response.read())


async def history(served: Served) -> list[dict[str, Any]]:
    versions = (await get(served, "/admin/policy/history")).json["versions"]
    assert isinstance(versions, list)
    return versions


async def route_of(served: Served) -> str:
    return (await served.chat("What is a scope?")).headers["x-nearhit-route"]


async def test_the_policy_in_force_is_shown_with_its_files_and_an_etag(served: Served) -> None:
    answer = await get(served, "/admin/policy")
    assert answer.headers["ETag"] == f'"{answer.json["hash"]}"'
    assert answer.json["files"] == [{"name": "default.yaml", "content": DEFAULT}]
    assert (answer.json["routes"], answer.json["faults"], answer.json["editable"]) == (["default"], [], True)


async def test_validate_says_what_would_be_and_changes_nothing(served: Served, tmp_path: Path) -> None:
    answer = await send(served, "/admin/policy/validate?file=support.yaml", SUPPORT)
    assert answer.status == 200
    assert (answer.json["ok"], answer.json["routes"]) == (True, ["support", "default"])
    assert answer.json["diff"].startswith("--- /dev/null\n+++ b/support.yaml\n")
    assert [path.name for path in (tmp_path / "policies").iterdir()] == ["default.yaml"]
    assert await route_of(served) == "default"
    assert len(await history(served)) == 1


@pytest.mark.parametrize("path", ["/admin/policy", "/admin/policy/validate"])
async def test_every_fault_comes_at_once_with_its_line_and_key(served: Served, tmp_path: Path, path: str) -> None:
    answer = await send(served, path, WRONG)
    assert answer.status == 422
    places = [(fault["line"], fault["path"]) for fault in answer.json["faults"]]
    assert (3, "routes[0].route.backend") in places
    assert (4, "routes[1].nme") in places
    assert answer.json["error"] == f"the policy has {len(places)} faults"
    assert (tmp_path / "policies" / "default.yaml").read_text() == DEFAULT
    assert await route_of(served) == "default"


async def test_an_applied_file_is_in_force_written_and_remembered_once(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swaps: list[str] = []
    apply = served.gateway.apply
    monkeypatch.setattr(served.gateway, "apply", lambda policy: (swaps.append(policy.hash), apply(policy)))
    before = served.gateway.policy.hash
    answer = await send(
        served, "/admin/policy", CHANGED, x_nearhit_author="alice", x_nearhit_comment="a trial", If_Match=f'"{before}"'
    )
    assert (answer.status, answer.json["applied"], answer.json["previous"]) == (200, True, before)
    assert await route_of(served) == "changed"
    assert (tmp_path / "policies" / "default.yaml").read_text() == CHANGED
    # A file changed by hand afterwards is noticed: by then the watcher has seen what was applied, too.
    (tmp_path / "policies" / "default.yaml").write_text(DEFAULT)
    await until(lambda: served.gateway.policy.hash == before)
    assert swaps == [answer.json["hash"], before]
    await until_versions(served, 3)
    newest, applied, first = await history(served)
    assert (applied["author"], applied["via"], applied["comment"]) == ("alice", "api", "a trial")
    assert (applied["added"], applied["removed"]) == (1, 1)
    assert (first["author"], newest["author"], newest["hash"]) == ("file", "file", first["hash"])
    version = (await get(served, f"/admin/policy/history/{applied['version']}")).json
    assert version["files"] == {"default.yaml": CHANGED}
    assert "+  - {name: changed" in version["diff"]


async def until_versions(served: Served, count: int) -> None:
    async with asyncio.timeout(120):
        while len(await history(served)) < count:
            await asyncio.sleep(0.01)


async def test_the_same_again_is_no_change(served: Served) -> None:
    answer = await send(served, "/admin/policy", DEFAULT)
    assert (answer.status, answer.json["applied"]) == (200, False)
    assert len(await history(served)) == 1


async def test_of_two_who_change_the_same_policy_one_is_told(served: Served) -> None:
    match = f'"{served.gateway.policy.hash}"'
    bodies = (CHANGED, DEFAULT.replace("name: default", "name: other"))
    answers = await asyncio.gather(*(send(served, "/admin/policy", body, If_Match=match) for body in bodies))
    assert sorted(answer.status for answer in answers) == [200, 412]
    assert len(await history(served)) == 2


async def test_a_match_that_is_no_utf_8_is_none(served: Served) -> None:
    body = CHANGED.encode()
    head = f"POST /admin/policy HTTP/1.1\r\nHost: {served.admin_url.removeprefix('http://')}\r\n"
    head += f"Content-Length: {len(body)}\r\nIf-Match: "
    async with connected(served.admin_url) as wire:
        await wire.send(head.encode() + b'"caf\xe9"\r\n\r\n' + body)
        assert (await wire.message()).status == 412


async def test_an_edit_that_is_not_in_force_is_not_written_over_unasked(served: Served, tmp_path: Path) -> None:
    (tmp_path / "policies" / "default.yaml").write_text("routes: [")
    match = f'"{served.gateway.policy.hash}"'
    answer = await send(served, "/admin/policy", CHANGED, If_Match=match)
    assert answer.status == 412
    assert "the files have changed" in answer.json["error"]
    assert (await send(served, "/admin/policy", CHANGED)).status == 200


async def test_rollback_puts_the_files_of_a_version_back_as_a_new_one(served: Served, tmp_path: Path) -> None:
    first = served.gateway.policy.hash
    assert (await send(served, "/admin/policy?file=support.yaml", SUPPORT)).status == 200
    assert (await send(served, "/admin/policy", CHANGED)).status == 200
    answer = await send(served, "/admin/policy/rollback", json.dumps({"hash": first}), x_nearhit_author="bob")
    assert (answer.status, answer.json["hash"], answer.json["routes"]) == (200, first, ["default"])
    assert [path.name for path in (tmp_path / "policies").iterdir()] == ["default.yaml"]
    assert await route_of(served) == "default"
    newest = (await history(served))[0]
    assert (newest["version"], newest["author"], newest["via"]) == (4, "bob", "rollback")
    assert (await send(served, "/admin/policy/rollback")).json["routes"] == ["support", "changed"]


async def test_a_rollback_to_nothing_is_a_sentence(served: Served) -> None:
    assert (await send(served, "/admin/policy/rollback")).status == 404
    for body in ('{"version": 99}', '{"hash": "ffff"}'):
        answer = await send(served, "/admin/policy/rollback", body)
        assert (answer.status, "expected a number or a hash" in answer.json["error"]) == (404, True)
    for body in ("[", "[1]", '{"version": true}', '{"hsh": 1}', '{"version": 1, "hash": "x"}'):
        assert (await send(served, "/admin/policy/rollback", body)).status == 400
    assert (await get(served, "/admin/policy/history/none")).status == 404
    assert (await get(served, "/admin/policy/history?limit=0")).status == 400


@pytest.mark.parametrize("name", ["../default.yaml", ".hidden.yaml", "a.yml", "a/b.yaml", "", "a%00.yaml"])
async def test_only_policy_files_of_the_folder_can_be_named(served: Served, name: str, tmp_path: Path) -> None:
    answer = await send(served, f"/admin/policy?file={name}", SUPPORT)
    assert (answer.status, answer.json["error"][:5]) == (400, "file:")
    assert [path.name for path in (tmp_path / "policies").iterdir()] == ["default.yaml"]


async def test_what_is_no_author_or_too_much_is_refused(served: Served) -> None:
    assert (await send(served, "/admin/policy", CHANGED, x_nearhit_author="x" * 129)).status == 400
    assert (await send(served, "/admin/policy", BytesIO(b"#" * (2**20 + 1)))).status == 413
    assert (await send(served, "/admin/policy", b"\xff")).status == 422
    assert len(await history(served)) == 1


async def test_a_folder_that_cannot_be_written_is_a_sentence_and_nothing_changes(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:  # as on a file system that is: root may write anywhere else
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(folder_module, "replace_file", read_only)
    answer = await send(served, "/admin/policy", CHANGED)
    assert answer.status == 503
    assert answer.json["error"] == (
        f"{tmp_path}/policies cannot be written (Read-only file system): expected a folder that the gateway can "
        "write, or an edit of the files in place"
    )
    assert await route_of(served) == "default"
    assert (tmp_path / "policies" / "default.yaml").read_text() == DEFAULT


async def test_a_link_is_not_written_over(served: Served, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.yaml").write_text(SUPPORT)
    (tmp_path / "policies" / "support.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    answer = await send(served, "/admin/policy?file=support.yaml", SUPPORT.replace("support", "other"))
    assert (answer.status, "is a link" in answer.json["error"]) == (503, True)
    assert (tmp_path / "policies" / "support.yaml").is_symlink()


async def test_who_may_is_checked_as_for_every_other_change(guarded: Served, served: Served) -> None:
    for path in ("/admin/policy", "/admin/policy/validate", "/admin/policy/rollback"):
        assert (await send(guarded, path, DEFAULT)).status == 401
        assert (await send(served, path, DEFAULT, Origin="http://evil.example")).status == 403
        assert (await send(served, path, DEFAULT, Host="evil.example")).status == 403
    answer = await send(guarded, "/admin/policy", DEFAULT, Authorization=f"Bearer {TOKEN}")
    assert (answer.status, "without policy files" in answer.json["error"]) == (409, True)


async def test_the_history_outlives_the_gateway(upstream: Upstream, tmp_path: Path) -> None:
    config = config_in(tmp_path, upstream)
    async with serving(config) as served:
        assert (await send(served, "/admin/policy", CHANGED, x_nearhit_author="alice")).status == 200
    async with serving(config) as served:
        assert [version["author"] for version in await history(served)] == ["alice", "file"]
        assert (await send(served, "/admin/policy/rollback")).json["routes"] == ["default"]


async def test_a_gateway_that_ends_between_two_files_has_both_after_the_next_start(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mixture of two policies is one that nobody has checked."""
    config = config_in(tmp_path, upstream)
    write = folder_module.replace_file
    written: list[Path] = []

    class Ended(BaseException):
        """The process is gone: nothing cleans up."""

    def once(path: Path, *more: Any) -> None:
        if written:
            raise Ended
        written.append(path)
        write(path, *more)

    async with serving(config) as served:
        first = served.gateway.policy.hash
        assert (await send(served, "/admin/policy?file=support.yaml", SUPPORT)).status == 200
        assert (await send(served, "/admin/policy", CHANGED)).status == 200
        life = served.gateway.policies
        assert (await send(served, "/admin/policy/rollback", json.dumps({"hash": first}))).status == 200
    # Version 3 has two files of which the folder now has neither.
    change = life.history.find("3")
    assert change is not None
    files = {name: content.encode() for name, content in change.files.items()}
    life.history.record_pending(_change(change, config))
    monkeypatch.setattr(folder_module, "replace_file", once)
    with pytest.raises(Ended):
        PolicyFolder(config.policies).write(files)
    monkeypatch.undo()
    async with serving(config) as served:
        assert served.gateway.policy.hash == change.hash
        newest = (await history(served))[0]
        assert (newest["hash"], newest["author"]) == (change.hash, "alice")


def _change(version: Version, config: Config) -> PolicyChange:
    before = file_contents(tuple(PolicyFolder(config.policies).texts()))
    return PolicyChange(version.hash, Author("alice", "rollback"), before, version.files)


async def test_a_gateway_that_ends_between_file_and_swap_has_the_policy_and_its_author_after_the_next_start(
    upstream: Upstream, tmp_path: Path
) -> None:
    config = config_in(tmp_path, upstream)

    def ended(*_: object) -> None:
        raise RuntimeError("the process is gone")

    life = PolicyManager(config, config.policies, check_folder(config.policies, config), ended, lambda: 0.0)
    await life.begin()
    with pytest.raises(RuntimeError):
        await life.apply(None, CHANGED.encode(), Author("alice", "api"), None)
    async with serving(config) as served:
        assert await route_of(served) == "changed"
        assert [version["author"] for version in await history(served)] == ["alice", "file"]


async def test_a_killed_gateway_keeps_what_was_applied(upstream: Upstream, tmp_path: Path) -> None:
    config = write_config(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, DEFAULT)
    async with served_by_process(config) as served:
        assert (await send(served, "/admin/policy?file=policy.yaml", CHANGED, x_nearhit_author="alice")).status == 200
        await served.kill()
    async with served_by_process(config) as served:
        assert (await get(served, "/admin/policy")).json["routes"] == ["changed"]
        assert [version["author"] for version in await history(served)] == ["alice", "file"]


async def test_an_expectation_that_does_not_hold_keeps_the_policy_out(served: Served, tmp_path: Path) -> None:
    tests = "tests:\n  - {name: all, request: {}, expect: {route: default}}\n"
    assert (await send(served, "/admin/policy", DEFAULT + tests)).status == 200
    before = served.gateway.policy.hash
    answer = await send(served, "/admin/policy", CHANGED + tests)
    assert (answer.status, answer.json["faults"][0]["path"]) == (422, "tests[0].expect.route")
    answer = await send(
        served, "/admin/policy?file=support.yaml", SUPPORT.replace("{headers: {x-app: support}}", "{model: '*named'}")
    )
    assert answer.json["faults"][0]["file"].endswith("default.yaml"), "tests of one file hold for the rules of all"
    (tmp_path / "policies" / "default.yaml").write_text(CHANGED + tests)
    await until(lambda: bool(served.gateway.stats.policy_faults))
    assert served.gateway.policy.hash == before
