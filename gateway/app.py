"""The composition root. It builds the parts, and starts and stops everything in order."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import bootstrap
from gateway.adapters.system.clock import SystemClock
from gateway.admin.backends import shown
from gateway.admin.learning import QualityHandler, RoutingHandler
from gateway.admin.on_demand import AdminCore, OnDemand
from gateway.admin.policy_manager import PolicyManager
from gateway.admin.server import AdminPort
from gateway.admin.stats import Gauges, Stats, set_policy_gauges, set_size_gauges
from gateway.bootstrap import Access, Dashboard, Observed, observer_of
from gateway.cache.recovery import retry_until_available
from gateway.cache.stores import Stores, open_stores
from gateway.circuit_breaker import BreakerState
from gateway.config import Config
from gateway.config.errors import ConfigError, ConfigInvalid
from gateway.config.policy.model import Policy
from gateway.context import Handler
from gateway.errors import StartupError
from gateway.feature import Core, Features, embeds, has_tiers
from gateway.fleet_metrics import figures_of
from gateway.http_server.listening import DataDirLock, certificates_of, grpc_port_of, listening
from gateway.http_server.responses_endpoint import ResponsesSockets
from gateway.http_server.server import HttpServer
from gateway.jobs import Jobs, JobsCore
from gateway.observability.access_log import AccessLog
from gateway.pipeline import Deployment, route_table, shared_pipeline
from gateway.ports import Clock
from gateway.steps.assembly import RouteSteps, SharedSteps, exact_lookup
from gateway.steps.control_endpoints import Endpoint
from gateway.steps.erasures import ErasureCore, Erasures
from gateway.steps.error_boundary import Inflight
from gateway.steps.parse_and_route import RouteTable
from gateway.steps.parts import OPENING, Parts, build_parts, recovery_of
from gateway.tasks import run_in
from gateway.worker import WorkerEnvironment, admin_socket, data_socket

if TYPE_CHECKING:  # imported with the spaces
    from gateway.cache.embedding_migration import EmbedderCutover, EmbeddingMigration

LOG = logging.getLogger("nearhit")


class Gateway:
    """A gateway that runs. `running` creates it."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        stores: Stores,
        policy: Policy,
        environ: Mapping[str, str],
        observer: Observed,
        policies: Path | None,
        worker_environment: WorkerEnvironment | None,
        stack: AsyncExitStack,
    ) -> None:
        self.config = config
        self.parts = parts
        self.stores = stores
        self.removal = bootstrap.purge_of(config, parts, stores, lambda: self.policy)
        self.replication = parts.fleet.replicate(
            stores, parts.spaces, parts.store, parts.memory, parts.telemetry, parts.clock, self.removal
        )
        space = parts.space if parts.spaces.is_open else None
        self.recovery = recovery_of(stores, parts, space, self.removal, self.replication)
        self.migration: EmbeddingMigration | None = None  # both while a route compares questions
        self.cutover: EmbedderCutover | None = None
        if space is not None:
            self._open_migration()
        self._deployment = Deployment.of(config)
        self.features = Features(
            Core(
                clock=parts.clock,
                telemetry=parts.telemetry,
                stack=stack,
                publisher=parts.fleet.publisher,
                subscribe=parts.fleet.on,
                flights=parts.flights,
                exact_cache=lambda route, inner: exact_lookup(route, self.parts, inner),
                pools=parts.pools,
                prices=parts.prices,
                draw=parts.draw,
                recording=parts.recorder,
                store=stores.redis,
                subjects=parts.subjects,
            )
        )
        self.erasures = None
        if parts.subjects is not None:
            self.erasures = Erasures(
                ErasureCore(config, stores, lambda: self.parts, self.removal, self.features.stored_parts)
            )
        try:
            self.features.open_for(policy)
        except ConfigInvalid as invalid:
            raise StartupError(str(invalid)) from None
        self._table = self._build(policy)
        # called for every request; a partial needs no Python frame
        self._current: Callable[[], RouteTable] = partial(getattr, self, "_table")
        self.access = Access(config, environ, stores, parts.clock, parts.telemetry)
        self.dashboard = Dashboard(parts, stores, observer)
        self._observer = self.dashboard.observer
        self._observer.ends = self.features.ends
        self.jobs = self._jobs(environ) if config.jobs.enabled else None
        self.inflight = Inflight(config.server.max_inflight)
        pipeline = self._pipeline()
        tls, certificate = certificates_of(config.server)
        self.data_port = HttpServer(
            config.server,
            parts.clock,
            pipeline,
            self.inflight,
            self.health,
            parts.unread,
            tls,
            data_socket(worker_environment),
        )
        self.grpc_port = grpc_port_of(config.server, parts.clock, pipeline, self.inflight, certificate)
        self.routing = RoutingHandler(
            parts.escalations, parts.routing, lambda: self.policy, parts.clock, parts.telemetry
        )
        self.gauges = Gauges(parts.telemetry, parts.pools, parts.store, parts.spaces, parts.clock, self.routing.sample)
        self.quality = QualityHandler(parts.spaces, lambda: self.policy)
        self.figures = figures_of(config, worker_environment, stores, parts.telemetry, self.gauges, parts.clock.wall())
        self.stats = Stats(self.figures, parts.clock, self.describe)
        self.policies = PolicyManager(config, policies, policy, self.policy_reloaded, parts.clock.wall, self._prepare)
        self.admin_port = self._admin_port(worker_environment)
        self.data_address = self.admin_address = self.grpc_address = ("", 0)

    def _admin_port(self, worker_environment: WorkerEnvironment | None) -> AdminPort:
        config, parts = self.config, self.parts
        core = AdminCore(
            config,
            parts.clock,
            self.stores,
            self.removal,
            self.erasures,
            self._deployment,
            self.features,
            self.access.keys,
            self.policies,
            lambda: self.policy,
            lambda: self.parts,
            self.stats,
            self.dashboard.decisions,
        )
        return AdminPort(
            config.server.admin,
            self.access.guard,
            self.figures.own,
            self.stats,
            self.quality,
            before_scrape=self.figures.sample,
            before_stats=self.figures.refresh,
            listening_socket=admin_socket(worker_environment),
            routes=[
                *self.dashboard.routes(),
                *self.routing.routes(),
                *OnDemand(core).routes(jobs=config.jobs.enabled),
            ],
        )

    @property
    def policy(self) -> Policy:
        return self._table.policy

    def apply(self, policy: Policy) -> None:
        """Put `policy` in force: build everything first, then swap one reference."""
        self._table = self._build(policy)

    def policy_reloaded(self, policy: Policy | None, faults: Sequence[ConfigError]) -> None:
        """Act on the outcome of a reload. `policy` is None if the reload failed; the last good policy stays."""
        if policy is not None:
            self.apply(policy)
            if self.cutover is None and self.parts.spaces.is_open:
                self._follow_spaces()
            self.parts.fleet.policy(policy.hash)
            LOG.info("policy in force", extra={"fields": {"hash": policy.hash}})
        else:
            LOG.error("policy rejected, the last good one stays", extra={"fields": {"faults": list(map(str, faults))}})
        self.parts.telemetry.policy_reload_ok.set(value=0.0 if policy is None else 1.0)
        self.stats.policy_faults = tuple(map(str, faults))

    def _build(self, policy: Policy) -> RouteTable:
        if any(map(has_tiers, policy.routes)):
            self.parts.escalations.rebase(self.parts.spaces.target.complexity.basis)
        table = route_table(
            policy,
            self._deployment,
            lambda route: RouteSteps(route, self.parts, self.features.ports(route)),
            self.features,
            self.parts.telemetry.failures,
        )
        self.parts.escalations.apply(policy)
        self.features.in_force(policy)
        self.parts.label_archive.apply(policy)
        for space in self.parts.spaces.all:
            space.backlog.routes = frozenset(route.name for route in policy.routes if route.semantic is not None)
        set_policy_gauges(self.parts.telemetry, policy)
        if self.parts.spaces.is_open:
            for route in policy.routes:
                # created here so that the route is shown from the start, before it has learnt anything
                control = self.parts.space.controls.of(route.name)
                control.learning = route.semantic is not None and route.semantic.learns
        return table

    def _pipeline(self) -> Handler:
        """Return the pipeline for client requests, up to the steps of their route."""
        config, access = self.config, self.access
        sockets = ResponsesSockets(self._current, config.backends, self.parts.clock, self.inflight, config.server)
        endpoints: list[Endpoint] = [sockets, self.parts.feedback]
        if self.jobs is not None:
            endpoints.append(self.jobs)
        pipeline = shared_pipeline(
            SharedSteps(
                self.parts,
                self._current,
                self._observer,
                access.is_valid,
                access.authenticate,
                endpoints,
                self.inflight,
            ),
            self.parts.telemetry.failures,
        )
        return sockets.connect(pipeline)

    def _jobs(self, environ: Mapping[str, str]) -> Jobs:
        """Return the jobs. Their pipeline has no limit on concurrency, because the job workers bound that. The client
        was identified when the job was accepted. Raise `StartupError`."""
        access, parts = self.access, self.parts
        steps = SharedSteps(parts, self._current, self._observer, access.is_valid, access.authenticate_job)
        pipeline = shared_pipeline(steps, parts.telemetry.failures, for_jobs=True)
        return Jobs(
            JobsCore(
                self.config,
                environ,
                self.stores,
                pipeline,
                parts.clock,
                parts.telemetry,
                parts.subjects_of,
                parts.erased.includes,
            )
        )

    async def health(self) -> tuple[bool, dict[str, Any]]:
        """Report the gateway ready as soon as it serves. A failed cache or backend does not make it unready: caches are
        an optimisation, and backends report their own state."""
        store = BreakerState(self.stores.redis.breaker).name.lower()
        return True, {"store_breaker": store, "index_ready": self.recovery.ready, "policy": self.policy.hash}

    async def recover(self) -> None:
        """Load the entries of the current embedding model from the store, then migrate those of another model."""
        await retry_until_available(self.stores.adopt_former)
        await self.recovery.run()
        await self._carry_over()

    async def _carry_over(self) -> None:
        if self.cutover is not None:
            self.parts.space.backlog.begin()
            await self.cutover.run()

    async def _prepare(self, policy: Policy) -> None:
        """Open what a policy needs, before it comes into force. Raise `ConfigInvalid`."""
        self.features.open_for(policy)
        route = next(filter(embeds, policy.routes), None)
        if route is not None:
            try:
                await self.parts.opener.open()
                if any(map(has_tiers, policy.routes)):
                    await asyncio.to_thread(self.parts.spaces.target.open_complexity)
            except Exception as error:  # of a model, its files or its server
                LOG.warning("the embedding model cannot be opened", exc_info=error)
                message = f"the embedding model cannot be opened for route {route.name}: {error}"
                raise ConfigInvalid([ConfigError(route.file, route.line, ("cache", "semantic"), message)]) from None

    def _open_migration(self) -> None:
        opening = import_module(OPENING)
        self.migration = opening.migration_of(self.stores, self.parts)
        self.cutover = opening.cutover_of(self.config, self.stores, self.parts, self.migration, self._on_cutover)

    def _follow_spaces(self) -> None:
        """Read the vectors of the store after spaces have opened while the gateway serves."""
        self._open_migration()
        begun, self.recovery = self.recovery, recovery_of(self.stores, self.parts, self.parts.space)

        async def recover() -> None:
            await begun.complete.wait()  # no hit before the bans are known
            await retry_until_available(self.parts.routing.restore)
            await retry_until_available(self.parts.scores.restore)
            await self.recovery.run()
            await self._carry_over()

        run_in(self.parts.opener.stack, recover())

    def _on_cutover(self) -> None:
        """Switch to the space of the new embedding model. Requests that arrive from now on use it."""
        assert self.cutover is not None
        self.recovery = self.cutover.recovery
        self.apply(self.policy)
        self.parts.space.backlog.begin()

    def describe(self) -> dict[str, Any]:
        """Return what the dashboard shows besides the metrics."""
        return {
            "listen": "{}://{}:{}".format(self.config.server.scheme, *self.data_address),
            "policy": {
                "hash": self.policy.hash,
                "routes": [route.name for route in self.policy.routes],
                "warnings": list(map(str, self.policy.warnings)),
            },
            "quality": self.quality.shown(),
            "routing": self.routing.shown(),
            "backends": shown(self.parts.pools, self.parts.clock.monotonic()),
            "store_breaker": BreakerState(self.stores.redis.breaker).name.lower(),
            "index_ready": self.recovery.ready,
            "loop": self.parts.loop_monitor.shown(),
            "migration": {state: value for (state,), value in self.parts.telemetry.migration_entries.values.items()},
            "embedder": self.parts.space.embedder.fingerprint if self.parts.spaces.is_open else "",
            "other_embedders": list(self.parts.fleet.other_embedders),
            "embedder_to_come": None
            if (upcoming := self.parts.spaces.upcoming) is None
            else upcoming.embedder.fingerprint,
            "tenants_of_a_key": self.access.tenants_of_keys.report(),
            "cache": set_size_gauges(self.parts.telemetry),
        }


@asynccontextmanager
async def running(
    config: Config,
    policy: Policy,
    environ: Mapping[str, str],
    clock: Clock | None = None,
    access_log: AccessLog | None = None,
    draw: Callable[[], float] = random.random,
    policies: Path | None = None,
    worker_environment: WorkerEnvironment | None = None,
) -> AsyncIterator[Gateway]:
    """Yield a gateway that listens on all its ports.

    On exit, everything that was started stops in reverse order, even if a later step of the start fails. `draw` returns
    numbers in [0, 1) that choose the hits to audit. `policies` is the folder that `policy` was read from, or None if
    the policy has no files. `worker_environment` is set if the process is one of several workers.

    Raise `StartupError`, `ChildFailed`, `ModelMissing` or `ModelCorrupt`, each with a one-sentence message.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        if access_log is not None:
            stack.callback(access_log.flush)
        if worker_environment is None:  # the supervisor of a worker holds the lock
            lock = DataDirLock(config.data_dir)
            stack.callback(lock.release)
        stores = await open_stores(config, environ, clock)
        stack.push_async_callback(stores.close)
        needs_model = any(map(embeds, policy.routes))
        parts = await build_parts(stack, config, environ, clock, draw, stores, embeds=needs_model)
        gateway = Gateway(
            config,
            parts,
            stores,
            policy,
            environ,
            partial(observer_of, stack, config, environ, access_log),
            policies,
            worker_environment,
            stack,
        )
        gateway.policy_reloaded(policy, ())
        await gateway.policies.begin()
        if stores.shared is not None:
            sync_policy = import_module("gateway.features.replicas.policy_sync").sync_policy
            sync_policy(stack, gateway.policies, gateway.parts.fleet)
        await gateway.removal.refresh()  # before any stored entry is served
        await gateway.access.begin(stack)
        _start_background(gateway, stack, worker_environment)
        if gateway.jobs is not None:
            await gateway.jobs.begin(stack)
        await _open_ports(gateway, stack, worker_environment)
        if gateway.jobs is not None:
            gateway.jobs.watch()
        yield gateway


def _start_background(gateway: Gateway, stack: AsyncExitStack, worker_environment: WorkerEnvironment | None) -> None:
    """Start the background tasks."""
    work = [gateway.recover(), gateway.removal.follow(), gateway.parts.evictions.run()]
    work += [] if gateway.erasures is None else [gateway.erasures.run()]
    work += [run() for run in gateway.parts.fleet.work]
    gateway.figures.begin(stack, worker_environment)
    gateway.dashboard.begin(stack, gateway.gauges.sample)
    for job in work:
        run_in(stack, job)


async def _open_ports(gateway: Gateway, stack: AsyncExitStack, worker_environment: WorkerEnvironment | None) -> None:
    """Open the admin port first, because operators look there first. Open the client ports once everything is ready.
    Raise `StartupError`."""
    server, grpc_port = gateway.config.server, gateway.grpc_port
    if worker_environment is None or worker_environment.admin is not None:
        stack.push_async_callback(gateway.admin_port.stop)  # also of a start that fails half way
        gateway.admin_address = await listening(gateway.admin_port.start(), "server.admin", server.admin)
    stack.callback(gateway.dashboard.decisions.close)  # otherwise the port would wait for clients of the live view
    gateway.parts.loop_monitor.begin(stack)
    stack.push_async_callback(gateway.data_port.stop)
    gateway.data_address = await listening(gateway.data_port.start(), "server.listen", server.listen)
    if grpc_port is not None and server.grpc is not None:
        stack.push_async_callback(grpc_port.stop)
        gateway.grpc_address = await listening(grpc_port.start(), "server.grpc", server.grpc)
