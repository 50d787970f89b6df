"""The admin operation that erases what one subject caused."""

from __future__ import annotations

import importlib.metadata
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, Field

from gateway.admin.audit import add_audit_fields
from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import json_errors, json_response, parse_object, parse_section
from gateway.cache.purge import PurgeIncomplete
from gateway.config.validation import Section
from gateway.errors import BadRequest, GatewayError
from gateway.features.erasure.eraser import Eraser, ErasureIncomplete, ErasureProgress
from gateway.features.erasure.report import LIMITS, sign
from gateway.subjects import Subject, parse_subject

REPORT_VERSION = 1


def _subject(value: object) -> Subject:
    if isinstance(value, Subject):
        return value
    return parse_subject(value if isinstance(value, str) else "")


class EraseBody(Section):
    """The subject to erase."""

    subject: Annotated[Subject, BeforeValidator(_subject, json_schema_input_type=str), Field(examples=["user:alice"])]
    """`user:NAME`, `key:NAME` or `tenant:NAME`. The name is complete."""
    tenant: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Only what belongs to this tenant. Users of two tenants may have the same name."""
    dry_run: bool = False
    """Count, and remove nothing."""


class ErasureCounts(TypedDict):
    entries: int
    traffic: int
    """Requests in the traffic log."""
    labels: int
    """Labels that are kept with their texts."""
    jobs: int
    files: int
    """Lines of a user in files of batches, or files and batches of a tenant."""
    relations: int
    """Links and counterexamples."""
    learned: int
    """Labelled lookups and decoys. 0 in a dry run."""


class ErasureReport(TypedDict):
    version: int
    id: str
    time: str
    gateway: str
    """The version of the gateway."""
    subject: str
    """The keyed digest of the subject."""
    tenant: str | None
    """The keyed digest of the tenant. Null: all tenants."""
    dry_run: bool
    durable: bool
    """Whether the ban has reached the disk of the store."""
    counts: ErasureCounts
    notes: list[str]
    limits: list[str]
    """Sentences about all that no erasure reaches."""


class SignedReport(TypedDict):
    report: ErasureReport
    algorithm: str
    public_key: str
    signature: str


class EraseAdmin:
    """`EraseAdmin` serves `POST /admin/cache/erase`."""

    def __init__(self, core: AdminCore) -> None:
        self._core = core

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/admin/cache/erase", json_errors(self._erase, _error_fields))]

    @operation(SignedReport, body=EraseBody)
    async def _erase(self, request: web.Request) -> web.StreamResponse:
        """Erase all that one subject asked or caused, and return a signed report. With `dry_run`, count only."""
        body = parse_section(EraseBody, parse_object(await request.read(), "a subject"))
        erasures, secret = self._core.erasures, self._core.parts().erasure_secret
        if erasures is None or secret is None:
            raise BadRequest(
                "there is no secret for erasures, so entries name nobody: on a shared store, expected "
                "store.erasure_key_env, the name of a variable with a secret that all gateways have"
            )
        if body.subject.kind == "tenant" and body.tenant is not None:
            raise BadRequest("tenant: expected none, the subject is a tenant itself")
        eraser: Eraser = await erasures.open()
        digest = eraser.digest(body.subject)
        tenant = None if body.tenant is None else eraser.digest(Subject("tenant", body.tenant))
        add_audit_fields(request, look=body.dry_run, subject=digest)
        erased = await eraser.erase(body.subject, body.tenant, dry_run=body.dry_run)
        add_audit_fields(request, **erased.counts)
        return json_response(sign(self._report(erased, tenant, dry_run=body.dry_run), secret))

    def _report(self, erased: ErasureProgress, tenant: str | None, *, dry_run: bool) -> dict[str, Any]:
        return {
            "version": REPORT_VERSION,
            "id": uuid.uuid4().hex,
            "time": datetime.fromtimestamp(self._core.clock.wall(), UTC).isoformat(timespec="seconds"),
            "gateway": importlib.metadata.version("nearhit"),
            "subject": erased.subject,
            "tenant": tenant,
            "dry_run": dry_run,
            "durable": erased.durable,
            "counts": erased.counts,
            "notes": erased.notes,
            "limits": list(LIMITS),
        }


def _error_fields(error: GatewayError) -> dict[str, Any]:
    if isinstance(error, ErasureIncomplete):
        return {"counts": error.erased.counts}
    if isinstance(error, PurgeIncomplete):
        return {"counts": {"entries": error.outcome.removed}, "recorded": error.outcome.recorded}
    return {}
