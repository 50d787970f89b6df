"""Admin operations on stored answers: purge and list."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from re import fullmatch
from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, Field

from gateway.admin.audit import add_audit_fields
from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import int_parameter, json_errors, json_response, parse_object, parse_section
from gateway.cache.purge import PurgeIncomplete, PurgeRequest, PurgeResult
from gateway.config.errors import format_value
from gateway.config.units import PositiveDuration
from gateway.config.validation import NOT_EMPTY, Section
from gateway.errors import BadRequest, GatewayError, StoreUnavailable

# An unknown name in a purge is a note and not an error: the store may still have answers with a former name.
MAX_LISTED_NAMES = 20


@dataclass(frozen=True, slots=True)
class PurgeValidation:
    """`PurgeValidation` finds the names in a purge that nothing has."""

    core: AdminCore

    async def unknown_names(self, purge_request: PurgeRequest) -> list[str]:
        """Return a sentence for each name that nothing has."""
        messages = [
            unknown_name_message(
                "route of the policy in force", purge_request.route, [each.name for each in self.core.policy().routes]
            ),
            unknown_name_message(
                "backend of the configuration", purge_request.backend, list(self.core.config.backends)
            ),
        ]
        auth = self.core.config.auth  # in other modes backends check credentials, and tenants have no names
        if purge_request.tenant is not None and auth.mode == "keys" and purge_request.tenant not in auth.keys:
            known = await self._tenants_with_keys(auth.keys)
            messages.append(unknown_name_message("tenant with a key", purge_request.tenant, known))
        return [sentence for sentence in messages if sentence is not None]

    async def _tenants_with_keys(self, configured: Collection[str]) -> Collection[str] | None:
        """Return the names of all tenants with a key. Return None if the store does not answer."""
        try:
            return sorted({*configured, *await (await self.core.keys.lookup()).tenants()})
        except StoreUnavailable:
            return None


def unknown_name_message(what: str, name: str | None, known: Collection[str] | None) -> str | None:
    """Return a sentence. Return None if `name` is known, is not given, or the known names are not available."""
    if name is None or known is None or name in known:
        return None
    listed = ", ".join(islice(known, MAX_LISTED_NAMES)) or "none"
    more = f" and {len(known) - MAX_LISTED_NAMES} more" if len(known) > MAX_LISTED_NAMES else ""
    return f"no {what} is called {format_value(name)} (there are: {listed}{more})"


DEFAULT_ENTRIES, MAX_ENTRIES = 50, 1_000

Word = Annotated[str, Field(min_length=1, max_length=512)]


def parse_fingerprint(value: object) -> str:
    """Return a complete fingerprint. Raise `ValueError` for less: the 12 digits that samples show may match another
    entry."""
    if not isinstance(value, str) or not fullmatch("[0-9a-f]{64}", value):
        raise ValueError("expected all 64 hex digits of one entry, as --json and GET /admin/cache/entries have them")
    return value


Fingerprint = Annotated[str, BeforeValidator(parse_fingerprint), Field(json_schema_extra={"pattern": "^[0-9a-f]{64}$"})]


class PurgeBody(Section):
    """The conditions of a purge. An entry is removed if it meets all of them; one matching tag is enough.

    At least one condition is required.
    """

    tags: Annotated[tuple[Word, ...], Field(strict=False, max_length=32), NOT_EMPTY] | None = None
    """Entries with one of these tags."""
    tenant: Word | None = None
    """The name of a tenant, or the hash that stands for its credentials."""
    route: Word | None = None
    """Entries of this route."""
    model: Word | None = None
    """Entries of this model."""
    backend: Word | None = None
    """Entries from this backend."""
    like: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    """Entries whose question means about the same as this text."""
    min_similarity: Annotated[float, Field(ge=0, le=1)] = 0.8
    """The least similarity to `like`."""
    older_than: PositiveDuration | None = None
    """Entries that were stored longer ago than this."""
    fingerprint: Fingerprint | None = None
    """One entry."""
    all: bool = False
    """Every entry."""
    dry_run: bool = False
    """Count the entries, and remove none."""

    def purge_request(self) -> PurgeRequest:
        """Return the conditions. Raise `BadRequest` if there are none."""
        purge_request = PurgeRequest(
            tags=self.tags or (),
            tenant=self.tenant,
            route=self.route,
            model=self.model,
            backend=self.backend,
            like=self.like,
            min_similarity=self.min_similarity,
            older_than_s=self.older_than,
            fingerprint=self.fingerprint,
            all=self.all,
        )
        if not purge_request.describe():
            raise BadRequest(
                "no condition is given: expected tags, tenant, route, model, backend, like, older_than, "
                'fingerprint, or "all": true'
            )
        return purge_request


class EntrySample(TypedDict):
    fingerprint: str
    route: str
    tenant: str
    """The first characters of the tenant."""
    model: str
    age_s: float
    tags: list[str]
    question: str | None
    """The first characters of the question. Null: only the exact cache has the entry."""


class PurgeReport(TypedDict):
    matched: int
    removed: int
    """0 after a dry run."""
    durable: bool
    """Whether the ban has reached the disk of the store."""
    samples: list[EntrySample]
    notes: list[str]
    """Sentences about names that nothing has, and other remarks."""
    not_reached: list[str]
    """A sentence for each part that stores something and that no removal reaches."""


class EntriesQuery(TypedDict, total=False):
    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES, default=DEFAULT_ENTRIES)]
    tag: str
    tenant: str
    route: str
    model: str
    backend: str


class EntriesReport(TypedDict):
    entries: list[EntrySample]


class CacheAdmin:
    """`CacheAdmin` serves purge and entries."""

    def __init__(self, core: AdminCore) -> None:
        self._removal = core.removal
        self._names = PurgeValidation(core)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/admin/cache/purge", json_errors(self._purge, _error_fields)),
            web.get("/admin/cache/entries", json_errors(self._entries, _error_fields)),
        ]

    @operation(PurgeReport, body=PurgeBody)
    async def _purge(self, request: web.Request) -> web.StreamResponse:
        """Remove the stored answers that meet all conditions. With `dry_run`, count them only.

        The removal is in force in every gateway on the store before the response is sent. If the store fails during a
        removal, the response has status 503 and the counts so far.
        """
        body = parse_section(PurgeBody, parse_object(await request.read(), "conditions"))
        purge_request = body.purge_request()
        add_audit_fields(request, look=body.dry_run, conditions=purge_request.describe())
        try:
            outcome = await self._removal.purge(purge_request, dry_run=body.dry_run)
        except PurgeIncomplete as error:
            await self._audit_purge(request, purge_request, error.outcome)
            raise
        await self._audit_purge(request, purge_request, outcome)
        return json_response(outcome.as_json())

    async def _audit_purge(self, request: web.Request, purge_request: PurgeRequest, outcome: PurgeResult) -> None:
        """Add the counts to the audit entry, and the unknown names to the notes.

        The names are looked up after the removal, so that the removal does not wait for the store.
        """
        add_audit_fields(request, matched=outcome.matched, removed=outcome.removed, recorded=outcome.recorded)
        outcome.notes += await self._names.unknown_names(purge_request)

    @operation(EntriesReport, query=EntriesQuery)
    async def _entries(self, request: web.Request) -> web.StreamResponse:
        """List stored answers that may be served and meet all conditions, in any order."""
        limit = int_parameter(request, "limit", DEFAULT_ENTRIES, MAX_ENTRIES)
        given = {name: request.query.get(name) or None for name in ("tag", "tenant", "route", "model", "backend")}
        return json_response({"entries": await self._removal.entries(limit, **given)})


def _error_fields(error: GatewayError) -> dict[str, Any]:
    if isinstance(error, PurgeIncomplete):
        return {**error.outcome.as_json(), "recorded": error.outcome.recorded}
    return {}
