"""Asynchronous inference: what `jobs` of `config.yaml` may say."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.config.fields import EnvironmentName, Text
from gateway.config.units import PositiveDuration, Size, Switch
from gateway.config.validation import Section


class Jobs(Section):
    """Requests that are accepted now and answered later."""

    enabled: Switch = True
    workers: Annotated[int, Field(ge=0, le=10_000)] = 16  # in flight at once, of this gateway; 0: it accepts alone
    max_queued: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000  # queued and running, of all gateways on the store
    max_queued_per_tenant: Annotated[int, Field(ge=1, le=10_000_000)] = 2_500
    max_body: Size = 2**20  # of a job's request
    max_bytes: Size = 256 * 2**20  # of the requests of all jobs that are not over
    max_result: Size = 4 * 2**20  # of an answer
    result_ttl: PositiveDuration = 86_400.0
    dead_ttl: PositiveDuration = 604_800.0  # how long a job that could not be answered is kept for an operator
    max_age: PositiveDuration = 86_400.0  # a job that is not over by then has failed
    visibility: PositiveDuration = 30.0  # a worker that was not heard of for so long has lost its jobs
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    fsync: Switch = False  # 202 only once the job is on the store's disk
    key_env: EnvironmentName | None = None  # what clients' credentials are sealed with while their jobs wait
    webhook_secret_env: EnvironmentName | None = None
    webhook_hosts: Annotated[tuple[Text, ...], Field(strict=False)] = ()  # may be private, and plain http
    webhook_attempts: Annotated[int, Field(ge=1, le=100)] = 8
    batches: Switch = False  # /v1/files and /v1/batches are the gateway's own; off: they pass through
    max_batch: Annotated[int, Field(ge=1, le=100_000)] = 10_000  # requests of one
    file_ttl: PositiveDuration = 604_800.0
