"""Rollouts before a real Triton: versions that are good, worse, failing, missing or drifting, and two gateways."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc.aio import InferenceServerClient

from gateway.errors import StoreUnavailable
from gateway.features.light.store import RolloutStore
from tests.features.light.routes import Models, routed
from tests.features.spend.test_budgets import Receiver
from tests.fixtures.own_triton import own_triton
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until


async def test_versions_come_better_worse_and_drifting_and_each_is_told(
    models: Models, upstream: Upstream, tmp_path: Path, receiver: Receiver
) -> None:
    model = models.model()
    models.put(model, 1, wrong="b")
    async with routed(models, upstream, tmp_path, model, f", agreement: 10%, webhook: '{receiver.url}'") as route:
        for _ in range(3):
            answer = await route.ask()
            assert answer.headers["x-nearhit-backend"] == "main", "nothing is served yet"
        first = await route.start(1)
        assert (first["stable"], first["candidate"], first["share"]) == (None, "1", 0.05)
        found = await route.traffic("promoted", words="a")
        assert found == ["started", "advanced", "advanced", "promoted"]
        while (await route.ask("a")).headers["x-nearhit-backend"] != "light":
            await asyncio.sleep(0)  # until the gateway has found that the model is there

        models.put(model, 2)
        await route.start(2)
        await route.traffic("promoted")
        state = await route.state()
        assert (state["stable"], state["previous"], state["candidate"]) == ("2", "1", None)

        models.put(model, 3, wrong="a")
        await route.start(3)
        await route.traffic("rolled-back")
        state = await route.state()
        assert (state["stable"], state["candidate"]) == ("2", None)
        assert state["events"][0]["why"].startswith(
            ("it is worse: against version 2 0", "it agrees with the large model in 0")
        )

        models.put(model, 4, wrong="new")  # as good as the one before, until the traffic has new words
        await route.start(4)
        await route.traffic("promoted")
        await route.traffic("rolled-back", words="new")
        state = await route.state()
        assert (state["stable"], state["previous"]) == ("2", None)
        told = [each["data"]["change"] for each in receiver.got]
        expected = [each["change"] for each in reversed(state["events"])]
        await until(lambda: len(receiver.got) >= len(expected))
        assert sorted(told) == sorted(expected)
        assert (
            receiver.got[0]["text"]
            == "nearhit: route default: version 1 of the light model started: a new version begins"
        )


async def test_a_version_that_the_server_lacks_changes_nothing(
    models: Models, upstream: Upstream, tmp_path: Path
) -> None:
    """Triton says that it has loaded version 9 which it lacks, and drops one that it served."""
    model = models.model()
    models.put(model, 1)
    async with routed(models, upstream, tmp_path, model) as route:
        await route.start(1)
        assert (await route.admin(action="promote"))[0] == 200
        status, found = await route.admin(action="start", version="9")
        assert (status, "does not serve version 9" in found["error"]) == (502, True), found
        assert (await route.state())["stable"] == "1"
        assert (await route.ask()).headers["x-nearhit-backend"] == "light"


async def test_a_failing_version_goes_back_and_no_client_notices(
    models: Models, upstream: Upstream, tmp_path: Path
) -> None:
    model = models.model()
    models.put(model, 1)
    models.put(model, 2, fails=True)
    async with routed(models, upstream, tmp_path, model, ", steps: [50%, 100%]") as route:
        await route.start(1)
        await route.admin(action="promote")
        await route.start(2)
        await route.traffic("rolled-back")
        assert (
            "failed" in (await route.state())["events"][0]["why"]
            or "wrong" in (await route.state())["events"][0]["why"]
        )
        assert (await route.state())["stable"] == "1"


async def test_the_served_version_is_the_stable_one_of_the_first_rollout(
    models: Models, upstream: Upstream, tmp_path: Path
) -> None:
    model = models.model()
    models.put(model, 1)
    async with routed(models, upstream, tmp_path, model) as route:
        (versions,) = route.rollouts.versions_of(route.rollouts.route("default"))
        await versions.require(["1"])
        assert (await route.ask()).headers["x-nearhit-backend"] == "light", "the server chooses"
        models.put(model, 2)
        started = await route.start(2)
        assert (started["stable"], started["candidate"]) == ("1", "2")


async def test_a_restart_goes_on_where_the_rollout_was(models: Models, upstream: Upstream, tmp_path: Path) -> None:
    model = models.model()
    models.put(model, 1)
    async with routed(models, upstream, tmp_path, model) as route:
        await route.start(1)
        await route.traffic("advanced")
        before = await route.state()
    async with routed(models, upstream, tmp_path, model) as route:
        await until(lambda: route.rollouts.rollout_of("default").candidate == "1")
        after = await route.state()
        assert after["events"][-len(before["events"]) :] == before["events"]
        async with InferenceServerClient(models.server.url.partition("://")[2]) as client:
            await client.unload_model(model)  # as after a restart of a server in explicit mode
        await route.traffic("promoted")


async def test_two_gateways_agree_and_only_one_of_two_promotions_counts(
    models: Models, upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    model = models.model()
    models.put(model, 1)
    models.put(model, 2)
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(
                routed(models, upstream, tmp_path / name, model, store={"url": outside_store.url})
            )
            for name in ("one", "two")
        ]
        await one.start(1)
        await one.admin(action="promote")
        await two.start(2)
        await until(lambda: one.rollouts.rollout_of("default").candidate == "2")
        found = await asyncio.gather(one.admin(action="promote"), two.admin(action="promote"))
        assert sorted(status for status, _ in found) == [200, 409], found
        for each in (one, two):
            state = await each.state()
            assert (state["stable"], state["previous"]) == ("2", "1")
            assert [event["change"] for event in state["events"]].count("promoted") == 2


async def test_a_server_that_loads_nothing_is_told(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    async with own_triton(tmp_path / "triton") as triton:
        models = Models(triton.server, tmp_path / "triton" / "models")
        async with routed(models, upstream, tmp_path / "var", "unary") as route:
            status, found = await route.admin(action="start", version="2")
            assert (status, "--model-control-mode=explicit" in found["error"]) == (502, True), found
            assert (await route.state())["managed"] is False


async def test_a_light_model_without_versions_is_told(upstream: Upstream, models: Models, tmp_path: Path) -> None:
    backends = {"light": {"adapter": "openai", "url": "http://127.0.0.1:1/v1"}}
    async with routed(models, upstream, tmp_path, "none", more_backends=backends) as route:
        status, found = await route.admin(action="promote")
        assert (status, "expected one with adapter: triton" in found["error"]) == (400, True), found
        async with route.served.session.get(f"{route.served.admin_url}/admin/light") as response:
            assert await response.json() == {"rollouts": []}


async def test_faults_of_a_command_are_told(models: Models, upstream: Upstream, tmp_path: Path) -> None:
    async with routed(models, upstream, tmp_path, models.model()) as route:
        for body, status, words in (
            ({"action": "promote"}, 409, "none to promote"),
            ({"action": "rollback"}, 409, "none to roll back"),
            ({"action": "start"}, 400, "expected a number with start"),
            ({"action": "start", "version": "one"}, 400, "version"),
            ({"action": "stop"}, 400, "action"),
            ({"action": "promote", "route": "other"}, 400, "'other' has no rollout"),
            ({"action": "refuse", "report": {"x": "y" * 5000}}, 400, "at most 4096 bytes"),
        ):
            found = await route.admin(**body)
            assert found[0] == status, (body, found)
            assert words in found[1]["error"]
        assert (await route.admin(action="refuse", why="worse"))[0] == 200
        state = await route.state()
        assert (state["managed"], state["events"][0]["change"]) == (False, "refused")


async def test_questions_with_the_large_models_answers_are_kept_and_erased(
    models: Models, upstream: Upstream, tmp_path: Path
) -> None:
    async with routed(models, upstream, tmp_path, models.model()) as route:
        for user in ("ann", "bob"):
            for stream in (False, True):
                assert (await route.served.chat(f"{user} {stream} red", user=user, stream=stream)).status == 200
        assert (await route.served.chat("secret red", headers={"Cache-Control": "no-store"})).status == 200

        async def texts() -> list[str]:
            async with route.served.session.get(f"{route.served.admin_url}/admin/light/rows?route=default") as found:
                return sorted(row["text"] for row in (await found.json())["rows"])

        assert await texts() == ["ann False red", "ann True red", "bob False red", "bob True red"]
        erase = f"{route.served.admin_url}/admin/cache/erase"
        async with route.served.session.post(erase, json={"subject": "user:ann"}) as response:
            assert response.status == 200, await response.text()
        assert await texts() == ["bob False red", "bob True red"]


async def test_without_the_store_everything_stays_as_it_is(
    models: Models, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.model()
    models.put(model, 1)
    async with routed(models, upstream, tmp_path, model) as route:
        await route.start(1)
        await route.admin(action="promote")

        async def down(*_: Any) -> Any:
            raise StoreUnavailable("the store is down")

        for name in ("read", "claim", "count", "evidence", "add_rows"):
            monkeypatch.setattr(RolloutStore, name, down)
        await route.rollouts.check()
        assert (await route.ask()).headers["x-nearhit-backend"] == "light"
