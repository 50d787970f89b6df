"""The checks of answers against the JSON Schemas of their requests, which storing and trials share.

The validator is in `gateway.features.answer_schemas`. It needs a large library, so nothing imports it before the first
check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from importlib import import_module
from typing import Protocol

from gateway.calls import Call
from gateway.dialect_traits import DemandedForm
from gateway.observability.telemetry import Telemetry

VALIDATOR = "gateway.features.answer_schemas.validator:SchemaValidator"
MAX_WAITING = 32  # checks; each takes at most the time of `validator.MAX_STEPS`


class Validity(StrEnum):
    """The result of a check; the label `outcome` of its metric."""

    VALID = "valid"
    INVALID = "invalid"
    BAD_SCHEMA = "bad-schema"  # not valid, too large, or with references to other documents
    TOO_COSTLY = "too-costly"  # the answer is too large, or takes too many steps
    BUSY = "busy"  # too many checks wait


class Validator(Protocol):
    """Checks answers, one at a time."""

    def check(self, form: DemandedForm, call: Call, payload: Sequence[bytes], streamed: bool) -> Validity:
        """Return how an answer fits. `payload` as in `Entry`. An answer that cannot be read does not fit."""


class SchemaChecks:
    """`SchemaChecks` runs checks in one thread, so that the event loop goes on meanwhile. The thread imports the
    validator for the first answer whose request names a schema."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._validator: Validator | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nearhit-schema")  # it starts with the first check
        self._waiting = 0

    async def fit(self, route: str, call: Call, payload: Sequence[bytes], streamed: bool) -> Validity | None:
        """Return how an answer fits the form that its request demands, or None if it demands none."""
        form = call.dialect.demanded_form(call)
        if not form:
            return None
        fit = await self._run(form, call, payload, streamed)
        self._telemetry.schema_checks.add(route, fit)
        return fit

    async def _run(self, form: DemandedForm, call: Call, payload: Sequence[bytes], streamed: bool) -> Validity:
        if self._waiting >= MAX_WAITING:
            return Validity.BUSY
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._check, form, call, payload, streamed)
        except RuntimeError:  # the gateway is closing
            return Validity.BUSY
        finally:
            self._waiting -= 1

    def _check(self, form: DemandedForm, call: Call, payload: Sequence[bytes], streamed: bool) -> Validity:
        if self._validator is None:
            module, _, name = VALIDATOR.partition(":")
            self._validator = getattr(import_module(module), name)()
        return self._validator.check(form, call, payload, streamed)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
