"""Routes that come, go, and share a light model while its versions are rolled out."""

from __future__ import annotations

from pathlib import Path

from gateway.config.policy.load import policy_from_text
from tests.features.light.routes import POLICY, Models, Route, routed
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

OTHER = """  - name: other
    match: {{headers: {{x-other: "1"}}}}
    route: {{light: light, large: main, escalate_above: 1, rollout: {{audit: 100%}}}}
"""
BEFORE = POLICY.replace("  - name: default", OTHER + "  - name: default").format(more="")
AFTER = POLICY.format(more="")
NONE = AFTER.partition("      rollout:")[0]
MOVED = AFTER.replace("light: light", "light: second")


def apply(route: Route, policy: str) -> None:
    route.served.gateway.apply(policy_from_text(policy, "p", route.served.gateway.config))


async def shares(route: Route) -> dict[str, float]:
    async with route.served.session.get(f"{route.served.admin_url}/metrics") as response:
        lines = (await response.text()).splitlines()
    name = "nearhit_rollout_share{"
    return {line.partition(" ")[0][len(name) - 1 :]: float(line.split()[-1]) for line in lines if line.startswith(name)}


async def test_two_routes_with_one_light_model_share_its_one_rollout(
    models: Models, upstream: Upstream, tmp_path: Path
) -> None:
    """Each of two rollouts would have the server unload the versions of the other."""
    model = models.model()
    models.put(model, 1)
    models.put(model, 2)
    async with routed(models, upstream, tmp_path, model) as route:
        await route.start(1)
        await route.admin(action="promote")
        assert (await route.ask()).headers["x-nearhit-backend"] == "light"
        apply(route, BEFORE)  # a route before it has the same light model from now on
        status, found = await route.admin(action="start", version="2")
        assert (status, "whose versions route 'other' rolls out" in found["error"]) == (400, True), found
        status, found = await route.admin(route="other", action="start", version="2")
        assert status == 200, found
        assert set(await shares(route)) == {'{route="other",version="2"}', '{route="other",version="1"}'}
        answers = [await route.ask() for _ in range(3)]  # of the route that does not lead
        assert {answer.headers["x-nearhit-backend"] for answer in answers} <= {"light", "main"}
        await until(lambda: route.rollouts.rollout_of("other").candidate == "2")


async def test_a_route_that_goes_or_changes_its_light_model_leaves_the_server_to_choose(
    models: Models, upstream: Upstream, tmp_path: Path
) -> None:
    model, second = models.model(), models.model()
    models.put(model, 1)
    models.put(second, 1)
    more = {"second": {"adapter": "triton", "url": models.server.url, "model": second}}
    for policy in (NONE, MOVED):
        async with routed(models, upstream, tmp_path / str(policy == NONE), model, more_backends=more) as route:
            (served,) = route.rollouts.versions_of(route.rollouts.route("default"))
            await route.start(1)
            await route.admin(action="promote")
            await route.admin(action="rollback")  # without a version in force the large model answers
            assert (await route.ask()).headers["x-nearhit-backend"] == "main"
            apply(route, policy)
            assert await shares(route) == {}
            await served.require(["1"])
            apply(route, NONE)
            assert (await route.ask()).headers["x-nearhit-backend"] == "light"
            apply(route, AFTER)  # it goes on where it was
            await until(lambda: route.rollouts.rollout_of("default").has_begun)
            assert (await route.ask()).headers["x-nearhit-backend"] == "main"


async def test_versions_of_one_model_are_never_asked_of_another(
    models: Models, upstream: Upstream, tmp_path: Path
) -> None:
    """A route whose light model becomes another one has no rollout yet, and may begin one."""
    model, second = models.model(), models.model()
    models.put(model, 7)
    models.put(second, 1)
    more = {"second": {"adapter": "triton", "url": models.server.url, "model": second}}
    async with routed(models, upstream, tmp_path, model, more_backends=more) as route:
        await route.start(7)
        await route.admin(action="promote")
        assert set(await shares(route)) == {'{route="default",version="7"}'}
        apply(route, MOVED)
        assert await shares(route) == {}
        assert not route.rollouts.rollout_of("default").has_begun
        (served,) = route.rollouts.versions_of(route.rollouts.route("default"))
        await served.require(["1"])
        await route.rollouts.check()
        assert (await route.ask()).headers["x-nearhit-backend"] == "second"
        status, found = await route.admin(action="start", version="1")
        assert status == 200, found
        assert route.rollouts.rollout_of("default").versions == ("1",)
