"""What operators may do with stored answers: remove, list, take out, bring in; and who did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing
from itertools import islice
from re import fullmatch
from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, Field

from gateway.admin.audit import add_audit_fields
from gateway.admin.keys import KeyAdmin
from gateway.admin.responses import NO_STORE, int_parameter, json_errors, json_response, parse_object, parse_section
from gateway.cache.export_import import ExportImport, ImportIncomplete
from gateway.cache.purge import Purge, PurgeIncomplete, PurgeRequest, PurgeResult
from gateway.config.errors import format_value
from gateway.config.policy.model import Policy
from gateway.config.units import PositiveDuration
from gateway.config.validation import NOT_EMPTY, Section
from gateway.errors import BadRequest, GatewayError, Overloaded, RequestTimeout, StoreUnavailable

# Whether what a removal names is known. It is no fault where it is not: the store may have answers of before.
MAX_LISTED_NAMES = 20


class PurgeValidation:
    """`policy` returns the one in force. `tenants`: those of the configuration's keys, `key_admin` has others;
    None: they have no names, as backends judge their credentials."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        backends: Collection[str],
        tenants: Collection[str] | None,
        key_admin: KeyAdmin,
    ) -> None:
        self._policy = policy
        self._backends = backends
        self._tenants = tenants
        self._keychain = key_admin

    async def unknown_names(self, purge_request: PurgeRequest) -> list[str]:
        """A sentence for each name that nothing has."""
        said = [
            unknown_name_message(
                "route of the policy in force", purge_request.route, [each.name for each in self._policy().routes]
            ),
            unknown_name_message("backend of the configuration", purge_request.backend, self._backends),
        ]
        if purge_request.tenant is not None and self._tenants is not None and purge_request.tenant not in self._tenants:
            said.append(
                unknown_name_message(
                    "tenant with a key", purge_request.tenant, await self._tenants_with_keys(self._tenants)
                )
            )
        return [sentence for sentence in said if sentence is not None]

    async def _tenants_with_keys(self, configured: Collection[str]) -> Collection[str] | None:
        """None: the store does not say."""
        try:
            return sorted({*configured, *(key.tenant for key in await self._keychain.listed())})
        except StoreUnavailable:
            return None


def unknown_name_message(what: str, name: str | None, known: Collection[str] | None) -> str | None:
    """None where `name` is among those, is not given, or where they are not known."""
    if name is None or known is None or name in known:
        return None
    listed = ", ".join(islice(known, MAX_LISTED_NAMES)) or "none"
    more = f" and {len(known) - MAX_LISTED_NAMES} more" if len(known) > MAX_LISTED_NAMES else ""
    return f"no {what} is called {format_value(name)} (there are: {listed}{more})"


MAX_STREAMS = 4  # exports and imports at once

STALL_S = 30.0  # how long a client may take for a piece of one

DEFAULT_ENTRIES, MAX_ENTRIES = 50, 1_000

Word = Annotated[str, Field(min_length=1, max_length=512)]


def parse_fingerprint(value: object) -> str:
    """Raises `ValueError`. Samples show 12 digits of it, which could be those of another entry."""
    if not isinstance(value, str) or not fullmatch("[0-9a-f]{64}", value):
        raise ValueError("expected all 64 hex digits of one entry, as --json and GET /admin/cache/entries have them")
    return value


Fingerprint = Annotated[str, BeforeValidator(parse_fingerprint)]


class PurgeBody(Section):
    """`POST /admin/cache/purge`. All that is given must hold; of the tags one."""

    tags: Annotated[tuple[Word, ...], Field(strict=False, max_length=32), NOT_EMPTY] | None = None
    tenant: Word | None = None
    route: Word | None = None
    model: Word | None = None
    backend: Word | None = None
    like: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    min_similarity: Annotated[float, Field(ge=0, le=1)] = 0.8
    older_than: PositiveDuration | None = None
    fingerprint: Fingerprint | None = None
    all: bool = False
    dry_run: bool = False

    def purge_request(self) -> PurgeRequest:
        """Raises `BadRequest` where nothing says what is meant."""
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


class CacheAdmin:
    def __init__(self, removal: Purge, portability: ExportImport, names: PurgeValidation) -> None:
        self._removal = removal
        self._names = names
        self._portability = portability
        self._streams = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/admin/cache/purge", json_errors(self._purge, _error_fields)),
            web.get("/admin/cache/entries", json_errors(self._entries, _error_fields)),
            web.get("/admin/cache/export", json_errors(self._export, _error_fields)),
            web.post("/admin/cache/import", json_errors(self._import, _error_fields)),
        ]

    async def _purge(self, request: web.Request) -> web.StreamResponse:
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
        """Names are looked up once it is done: nothing that waits comes before a removal."""
        add_audit_fields(request, matched=outcome.matched, removed=outcome.removed, recorded=outcome.recorded)
        outcome.notes += await self._names.unknown_names(purge_request)

    async def _entries(self, request: web.Request) -> web.StreamResponse:
        limit = int_parameter(request, "limit", DEFAULT_ENTRIES, MAX_ENTRIES)
        given = {name: request.query.get(name) or None for name in ("tag", "tenant", "route", "model", "backend")}
        return json_response({"entries": await self._removal.entries(limit, **given)})

    async def _export(self, request: web.Request) -> web.StreamResponse:
        form = request.query.get("format", "entries")
        if form not in ("entries", "chat"):
            raise BadRequest("format: expected one of: entries, chat")
        lines = self._portability.export(request.query.get("route"), request.query.get("tag"), chat=form == "chat")
        self._acquire_stream()
        try:
            async with aclosing(lines):
                return await _stream_lines(request, lines)
        finally:
            self._streams -= 1

    async def _import(self, request: web.Request) -> web.StreamResponse:
        self._acquire_stream()
        try:
            result = await self._portability.import_lines(_read_lines(request, self._portability.max_line))
        finally:
            self._streams -= 1
        add_audit_fields(request, **{name: count for name, count in result.as_json().items() if isinstance(count, int)})
        return json_response(result.as_json())

    def _acquire_stream(self) -> None:
        if self._streams >= MAX_STREAMS:
            raise Overloaded(f"{MAX_STREAMS} exports or imports are under way: ask again", retry_after_s=1)
        self._streams += 1


async def _stream_lines(request: web.Request, lines: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """The first line decides the status. Whatever goes wrong after it cuts the connection, so that nobody takes half
    for the whole."""
    first = await anext(lines, None)
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", **NO_STORE})
    await response.prepare(request)
    try:
        if first is not None:
            await response.write(first)
        async for line in lines:
            async with asyncio.timeout(STALL_S):
                await response.write(line)
        await response.write_eof()
    except (StoreUnavailable, TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()
    return response


async def _read_lines(request: web.Request, max_line_bytes: int) -> AsyncIterator[tuple[int, bytes | None]]:
    """The lines of the body with their numbers; None for one that is longer. Raises `RequestTimeout`."""
    number, held, skipping = 1, bytearray(), False
    while chunk := await _read_chunk(request):
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            held += piece
            if held.strip() or skipping:
                yield number, None if skipping or len(held) > max_line_bytes else bytes(held)
            number, held, skipping = number + 1, bytearray(), False
        held += rest
        if len(held) > max_line_bytes:
            held, skipping = bytearray(), True
    if held.strip() or skipping:
        yield number, None if skipping else bytes(held)


async def _read_chunk(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(STALL_S):
            return await request.content.read(2**16)
    except TimeoutError:
        raise RequestTimeout(f"nothing came for {STALL_S:g} s: expected the rest of the lines") from None


def _error_fields(error: GatewayError) -> dict[str, Any]:
    if isinstance(error, PurgeIncomplete):
        return {**error.outcome.as_json(), "recorded": error.outcome.recorded}
    return error.result.as_json() if isinstance(error, ImportIncomplete) else {}
