"""Builds what asynchronous inference is made of. Used by `app` alone."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.adapters.redis.jobs import RedisJobs
from gateway.adapters.system.webhook_client import WebhookClient
from gateway.admin.jobs import JobsHandler
from gateway.cache.stores import Stores
from gateway.config import Config, OpenAIBackendConfig
from gateway.config.environment import read_secret
from gateway.config.schema import JobsConfig
from gateway.context import Handler
from gateway.errors import StartupError
from gateway.jobs.batch_endpoint import BatchEndpoint
from gateway.jobs.batch_runner import BatchDriver
from gateway.jobs.endpoint import CredentialPolicy, JobEndpoint, bounds_of
from gateway.jobs.notifications import JobNotifications
from gateway.jobs.retry_policy import RetryTerms
from gateway.jobs.runner import Runner
from gateway.jobs.webhook_delivery import SecretInvalid, WebhookDelivery, secret_of
from gateway.jobs.workers import JobWorkers
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.steps.control_endpoints import Endpoint

if TYPE_CHECKING:
    from gateway.jobs.credential_encryption import Sealer

LOG = logging.getLogger("nearhit.jobs")
KEY_LENGTH = 32  # of `jobs.key_env`, in characters


@dataclass(frozen=True, slots=True)
class JobParts:
    """`work`: what runs as long as the gateway does."""

    endpoints: Sequence[Endpoint] = ()
    work: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    admin: Sequence[web.RouteDef] = ()


def build_jobs(
    config: Config,
    environ: Mapping[str, str],
    stores: Stores,
    handler: Handler,
    clock: Clock,
    telemetry: Telemetry,
) -> JobParts:
    """`handler`: the pipeline of a job that is run. Raises `StartupError`."""
    jobs, store = config.jobs, stores.jobs
    if not jobs.enabled:
        return JobParts()
    sealer = _sealer(jobs, environ)
    notifications, webhooks = JobNotifications(), _webhook_delivery(config, environ, store, clock, telemetry)
    listeners: list[Callable[[str], None]] = [notifications.over]
    if webhooks is not None:
        listeners.append(webhooks.over)
    name = f"gateway_{secrets.token_hex(8)}"

    def over(job: str) -> None:
        for listener in listeners:
            listener(job)

    workers = JobWorkers(
        name,
        store,
        Runner(handler, sealer, clock, max_result=jobs.max_result),
        RetryTerms(jobs.attempts, jobs.max_age, jobs.result_ttl, jobs.dead_ttl),
        clock,
        telemetry,
        random.random,
        over,
        limit=jobs.workers,
        visibility_s=jobs.visibility,
    )
    credentials = CredentialPolicy(_credentials_needed(config), sealer)
    endpoints: list[Endpoint] = [JobEndpoint(jobs, store, workers, notifications, over, credentials, telemetry)]
    work = [workers.run]
    if webhooks is not None:
        work.append(webhooks.run)
    if jobs.batches:
        driver = _batch_driver(name, jobs, stores, sealer, clock, workers)
        listeners.append(driver.over)
        endpoints.append(BatchEndpoint(jobs, stores.batches, credentials, clock, driver.wake))
        work.append(driver.run)
    return JobParts(endpoints, work, JobsHandler(store).routes())


def _sealer(jobs: JobsConfig, environ: Mapping[str, str]) -> Sealer | None:
    """Warns of a short secret: the key is derived from it without slowness, and could be guessed. It is taken all
    the same, as jobs may wait that are sealed with it. Raises `StartupError` where its variable is empty."""
    key = read_secret(environ, jobs.key_env, "jobs.key_env")
    if key is None:
        return None
    if len(key) < KEY_LENGTH:
        fields = {"variable": jobs.key_env, "characters": len(key), "todo": "openssl rand -base64 32"}
        LOG.warning(f"the secret of jobs.key_env has fewer than {KEY_LENGTH} characters", extra={"fields": fields})
    sealer: Sealer = import_module("gateway.jobs.credential_encryption").Sealer(key)
    return sealer


def _batch_driver(
    name: str, jobs: JobsConfig, stores: Stores, sealer: Sealer | None, clock: Clock, workers: JobWorkers
) -> BatchDriver:
    return BatchDriver(
        name,
        stores.batches,
        stores.jobs,
        bounds_of(jobs),
        sealer,
        clock,
        workers.wake,
        max_lines=jobs.max_batch,
        keep_s=jobs.file_ttl,
        result_s=jobs.result_ttl,
    )


def _webhook_delivery(
    config: Config, environ: Mapping[str, str], store: RedisJobs, clock: Clock, telemetry: Telemetry
) -> WebhookDelivery | None:
    """None: no secret to sign with, so no webhooks. Raises `StartupError`."""
    jobs = config.jobs
    text = read_secret(environ, jobs.webhook_secret_env, "jobs.webhook_secret_env")
    if text is None:
        return None
    try:
        signing = secret_of(text)
    except SecretInvalid as error:
        raise StartupError(f"jobs.webhook_secret_env, in {jobs.webhook_secret_env}: {error}") from None
    client = WebhookClient(frozenset(jobs.webhook_hosts))
    return WebhookDelivery(store, client, signing, clock, telemetry, random.random, attempts=jobs.webhook_attempts)


def _credentials_needed(config: Config) -> bool:
    """Whether a backend is asked with what its client has shown."""
    if config.auth.mode != "passthrough":
        return False
    http = (backend for backend in config.backends.values() if isinstance(backend, OpenAIBackendConfig))
    return any(
        backend.api_key_env is None and any(upstream.api_key_env is None for upstream in backend.addresses)
        for backend in http
    )
