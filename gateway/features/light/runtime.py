"""Rollouts while a gateway runs: follows the state in the store, judges it, and tells of each change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.adapters.system.json_webhook import deliver
from gateway.cache.stored_parts import StoredPart
from gateway.config.policy.model import Policy, Route
from gateway.config.policy.parameters import untuned
from gateway.context import Handler
from gateway.errors import BackendError, BadRequest, GatewayError, StoreUnavailable
from gateway.feature import Core, Runtime
from gateway.features.light.comparison import Comparisons
from gateway.features.light.judge import Evidence, Move, Verdict, judge
from gateway.features.light.metrics import RolloutMetrics
from gateway.features.light.rows import AnsweredRow
from gateway.features.light.rule import RolloutRule, rule_of
from gateway.features.light.state import Change, Rollout, RolloutEvent
from gateway.features.light.store import RolloutStore
from gateway.tasks import Background
from gateway.upstream.model_versions import ModelVersions

LOG = logging.getLogger("nearhit.light")
CHECK_S = 3.0  # between two readings of the state: so long do gateways disagree at most
TURN_S = 2.0  # less than `CHECK_S`: one gateway judges in that time
START_S = 30.0  # in which a new version is loaded; until then no other gateway judges or loads
ATTEMPTS = 10  # to get the turn
ITSELF = "the gateway"


class RolloutConflict(GatewayError):
    """The rollout is not in the state that the command is about."""

    status = 409
    kind = "rollout_conflict"


@dataclass(frozen=True, slots=True)
class RolloutView:
    """A rollout with what `explain` and the dashboard show of it."""

    route: str
    model: str
    rollout: Rollout
    evidence: Evidence
    verdict: Verdict
    share: float | None  # of the candidate


class Rollouts(Runtime):
    """`Rollouts` has the rollouts of all routes of this gateway. Another gateway may change them at any time. So a
    change is written only if the state in the store is still the one on which it was decided."""

    def __init__(self, core: Core, store: RolloutStore, metrics: RolloutMetrics) -> None:
        self._core = core
        self._store = store
        self._metrics = metrics
        self._routes: Mapping[str, Route] = {}
        self._leading: dict[str, str] = {}  # light backend -> the first route that rolls its versions out
        self._rollouts: dict[str, Rollout] = {}
        self._webhooks = Background()
        self._changing = asyncio.Lock()  # a check with an older state must not unload what a command has just loaded
        self.comparisons = Comparisons(core, store, metrics, self.rollout_of, self.versions_of)

    async def close(self) -> None:
        await self.comparisons.close()
        await self._webhooks.close()

    def stored_parts(self) -> Sequence[StoredPart]:
        return (self.comparisons,)

    def in_force(self, policy: Policy) -> None:
        routes = {route.name: route for route in policy.routes if route.of(RolloutRule) is not None}
        followed = [served for route in self._routes.values() for served in self.versions_of(route)]
        gone = self._routes.keys() - routes.keys()
        self._routes, self._leading = routes, {}
        for name, route in routes.items():
            self._leading.setdefault(_light_backend(route), name)
        led = [served for route in routes.values() for served in self.versions_of(route)]
        for served in followed:
            if served not in led:  # its route is gone, or has another light model: the server chooses again
                served.follow(None, lambda _, __: None)
        for name in gone:
            self._metrics.show(name, {})
        for name, route in routes.items():
            if name in self._rollouts and (versions := self.versions_of(route)):
                self._rollouts[name] = self._rollouts[name].of_model(versions[0].model)
            self._follow(route)

    def observe(self, route: Route, inner: Handler) -> Handler:
        return self.comparisons.observe(route, rule_of(route), inner)

    def rollout_of(self, route: str) -> Rollout:
        return self._rollouts.get(route, Rollout())

    def versions_of(self, route: Route) -> list[ModelVersions]:
        """Return the versions of the light model at each address of its backend. There are none for a route whose
        light model an earlier route rolls out: a backend has one rollout."""
        backend = _light_backend(route)
        if self._leading.get(backend) != route.name:
            return []
        pool = self._core.pools[backend]
        return [endpoint.upstream.versions for endpoint in pool.endpoints if endpoint.upstream.versions is not None]

    def route(self, name: str) -> Route:
        """Return a route with a rollout whose light model has versions. Raise `BadRequest`."""
        route = self._routes.get(name)
        if route is None:
            names = ", ".join(self._routes) or "none"
            raise BadRequest(f"route: {name!r} has no rollout in the policy, expected one of: {names}")
        backend = _light_backend(route)
        if (leading := self._leading[backend]) != name:
            raise BadRequest(
                f"route: the light model of {name!r} is backend {backend}, whose versions route {leading!r} rolls out: "
                f"expected {leading!r}"
            )
        if not self.versions_of(route):
            raise BadRequest(
                f"route: the light model of {name!r} is backend {backend}, which has no versions: expected one with "
                "adapter: triton"
            )
        return route

    # The state

    async def run(self) -> None:
        """Follow and judge the rollouts until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()

    async def check(self) -> None:
        """Read the state once, and act on it. Without the store everything stays as it is."""
        await self.comparisons.flush()
        for route in [route for route in self._routes.values() if self.versions_of(route)]:
            try:
                async with self._changing:
                    await self._check(route)
            except StoreUnavailable:
                return
            except BackendError as error:
                LOG.warning(
                    "a model server lacks a version of the light model, trying again",
                    extra={"fields": {"route": route.name, "error": str(error)}},
                )

    async def _check(self, route: Route) -> None:
        rollout = await self.read(route)
        if rollout.subject is None or not await self._store.claim(route.name, TURN_S):
            return
        await self._require(route, rollout)  # a server that was restarted serves what its repository says
        if rollout.candidate is not None:
            await self._store.count(route.name, rollout.epoch, {"waited": round(CHECK_S)})
        rule = rule_of(route)
        verdict = judge(rollout, Evidence.of(await self._store.evidence(route.name, rollout.epoch)), rule)
        change = _after(rollout, verdict, rule)
        if change is not None:
            await self._write(route, rollout, *change, verdict.why, ITSELF)

    async def read(self, route: Route) -> Rollout:
        """Return the state in the store, and follow it. Raise `StoreUnavailable`."""
        rollout = (await self._store.read(route.name)).of_model(self.versions_of(route)[0].model)
        if rollout != self._rollouts.get(route.name):
            self._rollouts[route.name] = rollout
            self._follow(route)
        return rollout

    def _follow(self, route: Route) -> None:
        rollout, steps = self.rollout_of(route.name), rule_of(route).steps
        split, versions = rollout.split(steps), self.versions_of(route)
        for served in versions:
            served.follow(split, partial(self.comparisons.on_call, route.name))
        shares = {} if rollout.stable is None else {rollout.stable: 1.0}
        if rollout.candidate is not None:
            share = rollout.share(steps)
            shares = dict.fromkeys(shares, 1.0 - share) | {rollout.candidate: share}
        self._metrics.show(route.name, shares if versions else {})

    async def _require(self, route: Route, rollout: Rollout) -> None:
        if rollout.versions:
            for served in self.versions_of(route):
                await served.require(rollout.versions)

    async def _write(
        self, route: Route, old: Rollout, new: Rollout, change: Change | None, why: str, by: str
    ) -> Rollout | None:
        """Write a changed rollout and tell of it. Return None if another gateway was first."""
        if change is not None:
            version = new.candidate or old.subject or ""
            new = new.record(RolloutEvent(round(self._core.clock.wall(), 3), change, version, why, by))
        new = replace(new, revision=old.revision + 1)
        if not await self._store.replace(route.name, old, new.packed()):
            return None
        self._rollouts[route.name] = new
        self._follow(route)
        if change is not None:
            self._tell(route, new.events[-1], new)
        return new

    def _tell(self, route: Route, event: RolloutEvent, rollout: Rollout) -> None:
        fields = {
            "route": route.name,
            "change": event.change,
            "version": event.version,
            "why": event.why,
            "stable": rollout.stable,
            "candidate": rollout.candidate,
        }
        LOG.info("rollout", extra={"fields": fields})
        self._metrics.changes.add(route.name, event.change)
        url = rule_of(route).webhook
        if url is not None:
            text = (
                f"nearhit: route {route.name}: version {event.version} of the light model {event.change}: {event.why}"
            )
            payload = {"type": f"rollout.{event.change}", "text": text, "data": fields}
            count = partial(self._metrics.webhooks.add, route.name)
            self._webhooks.start(f"{route.name}:{rollout.revision}", _send(url, payload, count))

    # Commands

    async def start(self, name: str, version: str, report: Mapping[str, Any], by: str) -> Rollout:
        """Begin the rollout of a version. Raise `BadRequest`, `RolloutConflict`, `BackendError` or `StoreUnavailable`.
        Then nothing has changed."""
        route = self.route(name)
        async with self._changing:
            await self._take_turn(name)
            try:
                return await self._start(route, version, report, by)
            finally:
                await self._store.release(name)

    async def _start(self, route: Route, version: str, report: Mapping[str, Any], by: str) -> Rollout:
        old = await self.read(route)
        if version in (old.stable, old.candidate):
            raise RolloutConflict(f"version {version} is rolled out already")
        adopted = old if old.has_begun else old.adopt(await self._current(route, version))
        new = adopted.begin(version, report)
        await self._require(route, new)
        return await self._command(route, old, new, Change.STARTED, "a new version begins", by)

    async def _take_turn(self, name: str) -> None:
        """Keep the other gateways from loading versions meanwhile. Raise `RolloutConflict`."""
        for _ in range(ATTEMPTS):
            if await self._store.claim(name, START_S):
                return
            await asyncio.sleep(TURN_S)
        raise RolloutConflict("another gateway is busy with this rollout: try again in a minute")

    async def _current(self, route: Route, version: str) -> str | None:
        """Return the version that the servers serve before the first rollout, other than the new one."""
        current = await self.versions_of(route)[0].current()
        return None if current == version else current

    async def promote(self, name: str, by: str) -> Rollout:
        """Give all calls to the candidate now. Raise as `start` does."""
        route = self.route(name)
        async with self._changing:
            old = await self.read(route)
            if old.candidate is None:
                raise RolloutConflict("no version is being rolled out, so there is none to promote")
            return await self._command(route, old, old.promote(), Change.PROMOTED, "an operator promoted it", by)

    async def roll_back(self, name: str, why: str, by: str) -> Rollout:
        """Take all calls from the candidate, or else from the stable version. Raise as `start` does, but for
        `BackendError`: the way back needs no server."""
        route = self.route(name)
        async with self._changing:
            old = await self.read(route)
            if old.subject is None:
                raise RolloutConflict("no version is in force, so there is none to roll back")
            new = old.roll_back()
            change = Change.ROLLED_BACK if new.stable is not None else Change.WITHDRAWN
            return await self._command(route, old, new, change, why or "an operator rolled it back", by)

    async def refuse(self, name: str, why: str, report: Mapping[str, Any], by: str) -> Rollout:
        """Record that a training made no version that may be rolled out. Raise as `start` does."""
        route = self.route(name)
        async with self._changing:
            old = await self.read(route)
            return await self._command(route, old, replace(old, report=report), Change.REFUSED, why, by)

    async def _command(self, route: Route, old: Rollout, new: Rollout, change: Change, why: str, by: str) -> Rollout:
        written = await self._write(route, old, new, change, why, by)
        if written is None:
            raise RolloutConflict("another gateway has just changed this rollout: look at it and try again")
        return written

    async def view(self, name: str) -> RolloutView:
        """Return a rollout with its evidence. Raise `BadRequest` or `StoreUnavailable`."""
        route = self.route(name)
        await self.comparisons.flush()
        rollout, rule = await self.read(route), rule_of(route)
        evidence = Evidence.of(await self._store.evidence(name, rollout.epoch))
        share = None if rollout.candidate is None else rollout.share(rule.steps)
        return RolloutView(
            name, self.versions_of(route)[0].model, rollout, evidence, judge(rollout, evidence, rule), share
        )

    async def views(self) -> list[RolloutView]:
        return [await self.view(name) for name, route in self._routes.items() if self.versions_of(route)]

    async def rows(self, name: str) -> list[AnsweredRow]:
        """Return the rows of a route, the oldest first. Raise `BadRequest` or `StoreUnavailable`."""
        self.route(name)
        await self.comparisons.flush()
        return await self._store.rows(name)


def _light_backend(route: Route) -> str:
    return untuned(route.target.tiers[0].backend)


async def _send(url: str, payload: Mapping[str, object], count: Any) -> None:
    if not await deliver(url, payload, count):
        LOG.warning("a change of a rollout was not delivered", extra={"fields": {"type": payload["type"]}})


def _after(rollout: Rollout, verdict: Verdict, rule: RolloutRule) -> tuple[Rollout, Change | None] | None:
    """Return the rollout after a verdict with the change to tell, or None if it stays."""
    match verdict.move:
        case Move.HOLD:
            return None
        case Move.LOOKED:
            return rollout.look(anew=False), None
        case Move.WINDOW_OVER:
            return rollout.look(anew=True), None
        case Move.OUT:
            return rollout.withdraw(), Change.WITHDRAWN
        case Move.BACK:
            back = rollout.roll_back()
            return back, Change.ROLLED_BACK if back.stable is not None else Change.WITHDRAWN
        case Move.UP:
            if rollout.step + 1 < len(rule.steps):
                return rollout.advance(), Change.ADVANCED
            return rollout.promote(), Change.PROMOTED
