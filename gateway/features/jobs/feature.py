"""Open the feature: its stores, endpoints, workers, batches and webhooks."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.adapters.redis.durability import WriteThrough
from gateway.config import Config, OpenAIBackendConfig
from gateway.config.environment import read_secret
from gateway.context import RequestContext
from gateway.errors import StartupError
from gateway.features.jobs.batch_driver import BatchDriver
from gateway.features.jobs.batch_endpoint import BatchEndpoint
from gateway.features.jobs.credential_encryption import Sealer
from gateway.features.jobs.endpoint import CredentialPolicy, JobEndpoint, bounds_of
from gateway.features.jobs.notifications import JobNotifications
from gateway.features.jobs.redis_batches import RedisBatches
from gateway.features.jobs.redis_jobs import RedisJobs
from gateway.features.jobs.retry_policy import RetryTerms
from gateway.features.jobs.runner import Runner
from gateway.features.jobs.webhook_client import WebhookClient
from gateway.features.jobs.webhook_delivery import SecretInvalid, WebhookDelivery, secret_of
from gateway.features.jobs.workers import JobWorkers
from gateway.jobs import JobsCore, is_job
from gateway.messages import Response
from gateway.tasks import restart_on_failure, run_in


@dataclass(frozen=True, slots=True)
class JobService:
    """The open feature."""

    jobs: JobEndpoint
    batches: BatchEndpoint | None  # None: `jobs.batches` is off

    async def answer(self, request: RequestContext) -> Response:
        if self.batches is None or is_job(request):
            return await self.jobs.answer(request)
        return await self.batches.answer(request)


def open_jobs(core: JobsCore, secret: str | None, stack: AsyncExitStack) -> JobService:
    """Build the feature, and run its work until `stack` closes. Raise `StartupError`.

    `secret` encrypts the credentials of waiting jobs. Without it jobs with credentials are refused.
    """
    config, clock, telemetry, subjects_of = core.config.jobs, core.clock, core.telemetry, core.subjects_of
    redis, client = core.stores.redis, core.stores.client
    sync = WriteThrough(client) if config.fsync else None
    store, batch_store = RedisJobs(redis, client, sync), RedisBatches(redis, client, sync)
    sealer = None if secret is None else Sealer(secret)
    notifications, webhooks = JobNotifications(), _webhook_delivery(core, store)
    listeners: list[Callable[[str], None]] = [notifications.on_job_end]
    if webhooks is not None:
        listeners.append(webhooks.on_job_end)
    name = f"gateway_{secrets.token_hex(8)}"

    def on_job_end(job: str) -> None:
        for listener in listeners:
            listener(job)

    workers = JobWorkers(
        name,
        store,
        Runner(core.pipeline, sealer, clock, max_result=config.max_result),
        RetryTerms(config.attempts, config.max_age, config.result_ttl, config.dead_ttl),
        clock,
        telemetry,
        random.random,
        on_job_end,
        limit=config.workers,
        visibility_s=config.visibility,
    )
    credentials = CredentialPolicy(_credentials_needed(core.config), sealer)
    jobs = JobEndpoint(config, store, workers, notifications, on_job_end, credentials, telemetry, subjects_of)
    work = [workers.run]
    if webhooks is not None:
        work.append(webhooks.run)
    batches = None
    if config.batches:
        driver = BatchDriver(
            name,
            batch_store,
            store,
            bounds_of(config),
            sealer,
            clock,
            workers.wake,
            max_lines=config.max_batch,
            keep_s=config.file_ttl,
            result_s=config.result_ttl,
            subjects_of=subjects_of,
            is_erased=core.is_erased,
        )
        listeners.append(driver.on_job_end)
        batches = BatchEndpoint(config, batch_store, credentials, clock, driver.wake)
        work.append(driver.run)
    for each in work:
        run_in(stack, restart_on_failure(each))
    return JobService(jobs, batches)


def _webhook_delivery(core: JobsCore, store: RedisJobs) -> WebhookDelivery | None:
    """Build the delivery of webhooks. Return None if there is no secret to sign them with. Raise `StartupError`."""
    jobs = core.config.jobs
    text = read_secret(core.environ, jobs.webhook_secret_env, "jobs.webhook_secret_env")
    if text is None:
        return None
    try:
        signing = secret_of(text)
    except SecretInvalid as error:
        raise StartupError(f"jobs.webhook_secret_env, in {jobs.webhook_secret_env}: {error}") from None
    client = WebhookClient(frozenset(jobs.webhook_hosts))
    return WebhookDelivery(
        store, client, signing, core.clock, core.telemetry, random.random, attempts=jobs.webhook_attempts
    )


def _credentials_needed(config: Config) -> bool:
    """Return whether any backend is called with the client's own credentials."""
    if config.auth.mode != "passthrough":
        return False
    http = (backend for backend in config.backends.values() if isinstance(backend, OpenAIBackendConfig))
    return not all(backend.has_credentials for backend in http)
