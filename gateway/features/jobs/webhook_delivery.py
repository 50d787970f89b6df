"""Deliver webhooks about finished jobs, with retries."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

import orjson
from standardwebhooks import Webhook

from gateway.errors import StoreUnavailable
from gateway.features.jobs.retry_policy import backoff_s
from gateway.features.jobs.store import Delivery, JobState, JobStore, WebhookOutcome, job_json
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.tasks import Background

# The payload and signature of webhooks: Standard Webhooks 1.0
# (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md). Pure.
PREFIX = "whsec_"

MIN_SECRET, MAX_SECRET = 24, 64  # bytes, from the specification

MAX_RESPONSE = 256 * 1024  # bytes of a response that is sent with the webhook; the receiver fetches a larger one


class SecretInvalid(ValueError):
    """The secret is invalid. The message does not contain it."""


def secret_of(text: str) -> bytes:
    """Decode `whsec_` and the secret in base64. Raise `SecretInvalid`."""
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True) if text.startswith(PREFIX) else b""
    except ValueError:
        secret = b""
    if not MIN_SECRET <= len(secret) <= MAX_SECRET:
        raise SecretInvalid(f"expected whsec_ and {MIN_SECRET} to {MAX_SECRET} random bytes in base64")
    return secret


def message_id(job: str) -> str:
    """Return the message id. It is the same for every attempt, so that the receiver can detect repetitions."""
    return f"msg_{job}"


def payload_of(job_state: JobState) -> bytes:
    """Return the JSON payload of a finished job's webhook, without a response larger than `MAX_RESPONSE`."""
    fits = job_state.result is not None and len(job_state.result.body) <= MAX_RESPONSE
    return orjson.dumps(
        {
            "type": f"job.{job_state.status.value}",
            "timestamp": datetime.fromtimestamp(job_state.finished, UTC).isoformat().replace("+00:00", "Z"),
            "data": job_json(job_state, response=fits or job_state.result is None),
        }
    )


def sign_headers(secret: bytes, message: str, now: float, payload: bytes) -> dict[str, str]:
    """Return the signature headers. `now` is wall-clock seconds."""
    at = datetime.fromtimestamp(int(now), UTC)
    return {
        "webhook-id": message,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": Webhook(secret).sign(message, at, payload.decode()),
    }


POLL_EVERY_S = 1.0

CLAIM_S = 60.0  # longer than a receiver may take to respond; then another gateway may deliver

MAX_INFLIGHT = 32
MAX_PER_TENANT = 16  # so that the receivers of one tenant, which may all hang, do not delay those of others

BASE_S, CAP_S = 2.5, 3_600.0  # of full jitter: eight attempts usually take 5 minutes, at most 11 minutes

GONE = 410


class WebhookSender(Protocol):
    """The port through which webhooks are sent."""

    async def send(self, url: str, headers: dict[str, str], payload: bytes) -> WebhookOutcome:
        """Send a webhook in less than `CLAIM_S`. Raise nothing except on cancellation."""

    async def close(self) -> None: ...


def retry_delay_s(outcome: WebhookOutcome, attempt: int, attempts: int, jitter: float) -> float | None:
    """Return the seconds until the next attempt, or None to give up. Pure.

    A 410 means that the receiver is gone for good (from the specification). A refused address is not retried either.
    `attempt` is the attempt just made, counted from 1.
    """
    if outcome.is_delivered or outcome.status == GONE or outcome.word == "refused" or attempt >= attempts:
        return None
    return backoff_s(attempt, jitter, BASE_S, CAP_S)


def outcome_of(outcome: WebhookOutcome, retry_s: float | None) -> str:
    """Return the label `outcome` of `nearhit_jobs_webhooks_total`. Pure."""
    if outcome.is_delivered:
        return "delivered"
    if retry_s is not None:
        return "retried"
    if outcome.status == GONE:
        return "gone"
    return "refused" if outcome.word == "refused" else "given_up"


class WebhookDelivery:
    """`WebhookDelivery` delivers the due webhooks, signed with `secret`."""

    def __init__(
        self,
        store: JobStore,
        sender: WebhookSender,
        secret: bytes,
        clock: Clock,
        telemetry: Telemetry,
        jitter: Callable[[], float],
        *,
        attempts: int,
    ) -> None:
        self._store = store
        self._sender = sender
        self._secret = secret
        self._clock = clock
        self._telemetry = telemetry
        self._jitter = jitter
        self._attempts = attempts
        self._wake = asyncio.Event()
        self._deliveries = Background(MAX_INFLIGHT)
        self._running: Counter[str] = Counter()  # by tenant

    def on_job_end(self, job: str) -> None:
        """Look for due webhooks now: a job has ended."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver webhooks until cancelled. Another gateway or a later start repeats interrupted ones."""
        try:
            while True:
                with suppress(StoreUnavailable):
                    await self._deliver_due()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_EVERY_S):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            await self._deliveries.close()
            await self._sender.close()

    async def _deliver_due(self) -> None:
        free = MAX_INFLIGHT - len(self._deliveries)
        if free <= 0:
            return
        for delivery in await self._store.due_webhooks(free, CLAIM_S, MAX_PER_TENANT, +self._running):
            if self._deliveries.start(delivery.job, self._deliver(delivery)):
                self._running[delivery.job_state.tenant] += 1

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._attempt(delivery)
        finally:
            self._running[delivery.job_state.tenant] -= 1
            self._running += Counter()  # forget the tenants without any
            self._wake.set()

    async def _attempt(self, delivery: Delivery) -> None:
        payload = payload_of(delivery.job_state)
        headers = sign_headers(self._secret, message_id(delivery.job), self._clock.wall(), payload)
        outcome = await self._sender.send(delivery.url, headers, payload)
        retry_s = retry_delay_s(outcome, delivery.attempt, self._attempts, self._jitter())
        self._telemetry.job_webhooks.add(outcome_of(outcome, retry_s))
        with suppress(StoreUnavailable):  # it is delivered again: at least once
            await self._store.record_delivery(delivery.job, outcome_of(outcome, retry_s), retry_s)
