"""Jobs, files and batches: which requests are theirs, and the feature that serves them, opened when the first needs it.

Most gateways never see a job. So `gateway.features.jobs` is imported, in a thread, at the first request of a job. It is
also imported once the store has jobs of a former process or of another gateway. A gateway that sends webhooks opens it
at the start.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from gateway.adapters.redis.key_files import KeyFile
from gateway.adapters.redis.replies import number
from gateway.cache.erasure import ErasureTarget, ErasureTraces
from gateway.cache.stored_parts import FILES, JOBS, Part, StoredPart
from gateway.cache.stores import Stores
from gateway.config import Config
from gateway.context import Handler, RequestContext
from gateway.errors import StoreUnavailable
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.subjects import SubjectsOf
from gateway.tasks import run_in

PATH = "/v1/jobs"
BATCH_PATHS = re.compile(r"/v1/(files|batches)(?:/([A-Za-z0-9_-]{1,64}))?(?:/(content|cancel))?")
POLL_S = 1.0  # seconds until jobs that other gateways accepted are noticed, as with the heartbeat of an open feature
TIMEOUT_S = 5.0  # of one look at the store
KEYS = ("jobs:active", "jobs:dead", "jobs:finished", "jobs:webhooks", "files:all", "batches:open")

SEALING_KEY = KeyFile(
    "jobs.key",
    "jobs",
    "encrypts the credentials of jobs",
    "waiting jobs need it",
    logging.getLogger("nearhit.jobs"),
)


@dataclass(frozen=True, slots=True)
class JobsCore:
    """The parts of the gateway that jobs build on."""

    config: Config
    environ: Mapping[str, str]
    stores: Stores
    pipeline: Handler  # runs a job
    clock: Clock
    telemetry: Telemetry
    subjects_of: SubjectsOf | None
    is_erased: Callable[[Sequence[str], str, float], bool]


class OpenJobs(Protocol):
    """The feature while it is open."""

    async def answer(self, request: RequestContext) -> Response:
        """Answer a request about jobs, files or batches. Raise `GatewayError`."""


class Jobs:
    """`Jobs` is the endpoint of jobs, files and batches, and opens the feature behind it."""

    def __init__(self, core: JobsCore) -> None:
        """Raise `StartupError`. A short secret is accepted, because queued jobs may be sealed with it."""
        self._core = core
        self._config = core.config.jobs
        self._secret = SEALING_KEY.secret(core.config, core.environ, self._config.key_env, "jobs.key_env")
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._open: OpenJobs | None = None

    def claims(self, request: RequestContext) -> bool:
        return is_job(request) or (self._config.batches and BATCH_PATHS.fullmatch(request.path) is not None)

    async def answer(self, request: RequestContext) -> Response:
        return await (await self.open()).answer(request)

    async def begin(self, stack: AsyncExitStack) -> None:
        """Let `stack` stop the jobs. Open the feature if webhooks are configured, whose secret may have faults. Raise
        `StartupError`."""
        await stack.enter_async_context(self._stack)
        if self._config.webhook_secret_env is not None:
            await self.open()

    def watch(self) -> None:
        """Open the feature once the store has jobs, files or batches."""
        run_in(self._stack, self._watch())

    async def open(self) -> OpenJobs:
        """Return the feature. Open it first if it is closed. Raise `StartupError`."""
        if self._open is None:
            async with self._opening:
                if self._open is None:
                    module = await asyncio.to_thread(import_module, "gateway.features.jobs.feature")
                    self._open = module.open_jobs(self._core, self._secret, self._stack)
        assert self._open is not None
        return self._open

    async def _watch(self) -> None:
        names = [self._core.stores.redis.names.key(key) for key in KEYS]
        while self._open is None:
            with suppress(StoreUnavailable):
                if await self._core.stores.redis.execute(lambda client: client.exists(*names), TIMEOUT_S, read=number):
                    await self.open()
                    return
                self._show_none()
            await asyncio.sleep(POLL_S)

    def _show_none(self) -> None:
        telemetry = self._core.telemetry
        for state in ("queued", "running", "dead", "webhooks"):
            telemetry.jobs_held.set(state, value=0.0)
        telemetry.job_bytes.set(value=0)
        telemetry.job_oldest_seconds.set(value=0.0)


def is_job(request: RequestContext) -> bool:
    """Return whether a request makes a job, or is about one. Decide by its head."""
    path = request.path
    if path.startswith(PATH + "/") or (path == PATH and request.method == "POST"):
        return True
    prefer = request.headers.get("prefer")
    return prefer is not None and wants_async(prefer)


def wants_async(prefer: str) -> bool:
    """Return whether a header `Prefer` has `respond-async` (RFC 7240 section 4.1)."""
    return any(part.partition(";")[0].strip().lower() == "respond-async" for part in prefer.split(","))


class JobsPart:
    """A part of an erasure, imported when an erasure asks it. The store may have jobs although jobs are off."""

    def __init__(self, part: Part, stores: Stores, subjects_of: SubjectsOf) -> None:
        self.part = part
        self._stores = stores
        self._subjects_of = subjects_of

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        module = await asyncio.to_thread(import_module, "gateway.features.jobs.erasure")
        part: StoredPart = module.PARTS[self.part.name](self._stores, self._subjects_of)
        return await part.erase(target, traces, dry_run=dry_run)


def erasable_parts(stores: Stores, subjects_of: SubjectsOf) -> Sequence[StoredPart]:
    """Return the parts of an erasure. The lines of batches come first: no line becomes a job after these."""
    return [JobsPart(part, stores, subjects_of) for part in (FILES, JOBS)]
