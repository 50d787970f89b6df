"""The admin operations that export and import stored answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field

from gateway.admin.audit import add_audit_fields
from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import NO_STORE, json_errors, json_response
from gateway.cache.redaction import Redaction
from gateway.dialects.known import DIALECTS
from gateway.errors import BadRequest, GatewayError, Overloaded, RequestTimeout, StoreUnavailable
from gateway.features.export.transfer import ImportIncomplete, Transfer

NDJSON = "application/x-ndjson"

MAX_STREAMS = 4  # exports and imports at once

STALL_S = 30.0  # how long a client may take for one piece of an export or import


class ExportQuery(TypedDict, total=False):
    format: Annotated[Literal["entries", "chat"], Field(default="entries")]
    """`entries` can be imported again. `chat` is training data: one conversation per line."""
    route: str
    tag: str


class ImportFault(TypedDict):
    line: int
    error: str


class ImportReport(TypedDict):
    imported: int
    unchanged: int
    embedded: int
    """Entries whose vector this gateway computed."""
    refused: int
    faults: list[ImportFault]
    """The first refused lines."""


class ExportAdmin:
    """`ExportAdmin` serves `GET /admin/cache/export` and `POST /admin/cache/import`."""

    def __init__(self, core: AdminCore) -> None:
        parts = core.parts()
        self._transfer = Transfer(
            front=parts.store,
            removal=core.removal,
            spaces=parts.spaces,
            store=core.stores.redis,
            dialects=DIALECTS,
            stored=parts.evictions.stored,
            clock=core.clock,
            max_entry=core.config.store.max_entry,
            redaction_of=lambda route: core.policy().of(route, Redaction),
        )
        self._streams = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/cache/export", json_errors(self._export, _error_fields)),
            web.post("/admin/cache/import", json_errors(self._import, _error_fields)),
        ]

    @operation(str, query=ExportQuery, returns_type=NDJSON)
    async def _export(self, request: web.Request) -> web.StreamResponse:
        """Stream stored answers, one JSON object per line. The connection is cut if the store fails midway."""
        form = request.query.get("format", "entries")
        if form not in ("entries", "chat"):
            raise BadRequest("format: expected one of: entries, chat")
        lines = self._transfer.export(request.query.get("route"), request.query.get("tag"), chat=form == "chat")
        self._acquire_stream()
        try:
            async with aclosing(lines):
                return await _stream_lines(request, lines)
        finally:
            self._streams -= 1

    @operation(ImportReport, body=str, body_type=NDJSON)
    async def _import(self, request: web.Request) -> web.StreamResponse:
        """Store the answers of an export. A faulty line is reported, and the others are imported."""
        self._acquire_stream()
        try:
            result = await self._transfer.import_lines(_read_lines(request, self._transfer.max_line))
        finally:
            self._streams -= 1
        add_audit_fields(request, **{name: count for name, count in result.as_json().items() if isinstance(count, int)})
        return json_response(result.as_json())

    def _acquire_stream(self) -> None:
        if self._streams >= MAX_STREAMS:
            raise Overloaded(f"{MAX_STREAMS} exports or imports are running: try again", retry_after_s=1)
        self._streams += 1


async def _stream_lines(request: web.Request, lines: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """Send the lines. The first one decides the status.

    A later failure cuts the connection, so that no client takes a part for the whole.
    """
    first = await anext(lines, None)
    response = web.StreamResponse(headers={"Content-Type": NDJSON, **NO_STORE})
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
    """Yield the lines of the body with their numbers; None for a line that is too long. Raise `RequestTimeout`."""
    number, line, skipping = 1, bytearray(), False
    while chunk := await _read_chunk(request):
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            line += piece
            if line.strip() or skipping:
                yield number, None if skipping or len(line) > max_line_bytes else bytes(line)
            number, line, skipping = number + 1, bytearray(), False
        line += rest
        if len(line) > max_line_bytes:
            line, skipping = bytearray(), True
    if line.strip() or skipping:
        yield number, None if skipping else bytes(line)


async def _read_chunk(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(STALL_S):
            return await request.content.read(2**16)
    except TimeoutError:
        raise RequestTimeout(f"no data for {STALL_S:g} s: expected the rest of the lines") from None


def _error_fields(error: GatewayError) -> dict[str, Any]:
    return error.result.as_json() if isinstance(error, ImportIncomplete) else {}
