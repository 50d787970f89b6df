"""Serve OpenAI's `/v1/files` and `/v1/batches` if `jobs.batches` is on. `jobs.batch_runner` turns batches into jobs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs

import orjson
from multipart import MultipartError, MultipartParser, parse_options_header

from gateway.config.schema import JobsConfig
from gateway.context import RequestContext
from gateway.dialects.json_body import check_keys, parse_object
from gateway.errors import BadRequest, Conflict, NotFound, Overloaded, StoreUnavailable, TooManyJobs
from gateway.features.jobs.batches import WINDOWS, batch_json, endpoint_of, file_json, metadata_of
from gateway.features.jobs.endpoint import RETRY_AFTER_S, CredentialPolicy, key_header
from gateway.features.jobs.store import BatchFile, BatchStore, JobBatch
from gateway.features.jobs.submission import stored_headers
from gateway.jobs import BATCH_PATHS
from gateway.messages import FullBody, Provenance, Response
from gateway.outcomes import Bypass, Verdict
from gateway.ports import Clock

MAX_FILES, MAX_FILES_PER_TENANT, MAX_BATCHES_PER_TENANT = 10_000, 500, 500
MAX_PAGE = 100
PROVENANCE = Provenance(Verdict.BYPASS, reason=Bypass.JOB)


class BatchEndpoint:
    """`BatchEndpoint` answers requests about files and batches. `on_created` wakes the batch driver."""

    def __init__(
        self,
        config: JobsConfig,
        store: BatchStore,
        credentials: CredentialPolicy,
        clock: Clock,
        on_created: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._credentials = credentials
        self._clock = clock
        self._on_created = on_created
        self._answers: Mapping[tuple[str, str, bool, str], Callable[[RequestContext, str], Any]] = {
            ("POST", "files", False, ""): self._upload,
            ("GET", "files", False, ""): self._list_files,
            ("GET", "files", True, ""): self._show_file,
            ("GET", "files", True, "content"): self._content,
            ("DELETE", "files", True, ""): self._delete,
            ("POST", "batches", False, ""): self._create,
            ("GET", "batches", False, ""): self._list,
            ("GET", "batches", True, ""): self._show,
            ("POST", "batches", True, "cancel"): self._cancel,
        }

    async def answer(self, request: RequestContext) -> Response:
        match = BATCH_PATHS.fullmatch(request.path)
        assert match is not None  # `gateway.jobs` has matched the path
        kind, identity, action = match[1], match[2] or "", match[3] or ""
        answer = self._answers.get((request.method, kind, bool(identity), action))
        if answer is None:
            raise NotFound(
                f"{request.method} {request.path} is not supported: expected an operation on files or batches"
            )
        try:
            response: Response = await answer(request, identity)
        except StoreUnavailable as error:
            raise Overloaded(f"files and batches are unavailable: {error}", retry_after_s=RETRY_AFTER_S) from None
        return response

    async def _upload(self, request: RequestContext, _: str) -> Response:
        body, kind = await request.body_source.read(), request.headers.get("content-type", "")
        # Parsing a file of 100 MB takes a quarter of a second, so it runs in a thread and does not block the event
        # loop.
        content, filename, purpose = await asyncio.to_thread(_parse_form, body, kind)
        if purpose != "batch":
            raise BadRequest("'purpose' is invalid: expected batch", param="purpose")
        count, size = await self._store.file_totals()
        if count >= MAX_FILES or size + len(content) > self._config.max_bytes:
            raise Overloaded(
                f"the file store is full: expected at most {MAX_FILES} files and jobs.max_bytes bytes", retry_after_s=60
            )
        if len(await self._store.files(request.client.tenant)) >= MAX_FILES_PER_TENANT:
            raise TooManyJobs(
                f"you have reached the limit of {MAX_FILES_PER_TENANT} files: delete some", retry_after_s=60
            )
        now = self._clock.wall()
        name = f"file-{secrets.token_hex(16)}"
        file = BatchFile(name, request.client.tenant, filename, purpose, now, now + self._config.file_ttl, len(content))
        await self._store.put_file(file, content)
        return _json(file_json(file))

    async def _list_files(self, request: RequestContext, _: str) -> Response:
        data = [file_json(file) for file in await self._store.files(request.client.tenant)]
        return _json(_page(data, more=False))

    async def _show_file(self, request: RequestContext, identity: str) -> Response:
        return _json(file_json(await self._file(request, identity)))

    async def _content(self, request: RequestContext, identity: str) -> Response:
        await self._file(request, identity)
        content = await self._store.content(identity)
        if content is None:
            raise NotFound("there is no such file")
        return Response(200, (("Content-Type", "application/octet-stream"),), FullBody(content), PROVENANCE)

    async def _delete(self, request: RequestContext, identity: str) -> Response:
        file = await self._file(request, identity)
        for name in await self._store.open():
            batch = await self._store.batch(name)
            if batch is not None and batch.input_file == identity:
                raise Conflict("an unfinished batch needs this file: cancel the batch first")
        await self._store.delete_file(identity, file.tenant)
        return _json({"id": identity, "object": "file", "deleted": True})

    async def _file(self, request: RequestContext, identity: str) -> BatchFile:
        """Return the file. Raise `NotFound`, also if it belongs to another tenant."""
        file = await self._store.file(identity)
        if file is None or file.tenant != request.client.tenant:
            raise NotFound("there is no such file")
        return file

    async def _create(self, request: RequestContext, _: str) -> Response:
        check_keys(body := await request.body_source.read())
        fields = parse_object(body)
        endpoint, metadata = endpoint_of(fields.get("endpoint")), metadata_of(fields.get("metadata"))
        window = WINDOWS.get(str(fields.get("completion_window")))
        if endpoint is None:
            raise BadRequest(
                "'endpoint' is invalid: expected a model's path such as /v1/chat/completions", param="endpoint"
            )
        if window is None:
            raise BadRequest("'completion_window' is invalid: expected 24h", param="completion_window")
        if metadata is None:
            raise BadRequest(
                "'metadata' is invalid: expected up to 16 pairs of strings of at most 64 and 512 characters",
                param="metadata",
            )
        file = await self._file(request, str(fields.get("input_file_id")))
        if len(await self._store.batches(request.client.tenant)) >= MAX_BATCHES_PER_TENANT:
            raise TooManyJobs(f"you have reached the limit of {MAX_BATCHES_PER_TENANT} batches", retry_after_s=60)
        identity, now = f"batch_{secrets.token_hex(16)}", self._clock.wall()
        headers, credentials = stored_headers(
            request.headers_with_parent(request.headers), b"", request.client.credentials.rules, explicit=True
        )
        headers += key_header(request)
        sealed = self._credentials.sealed(credentials, identity)
        batch = JobBatch(
            identity, request.client.tenant, endpoint, file.id, now, now + window, metadata, headers, sealed
        )
        await self._store.create(batch)
        self._on_created()
        return _json(batch_json(batch, 0, 0))

    async def _list(self, request: RequestContext, _: str) -> Response:
        query = parse_qs(request.query)
        limit, after = query.get("limit", ["20"])[0], query.get("after", [""])[0]
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:4]) <= MAX_PAGE:
            raise BadRequest(f"'limit' is invalid: expected a number from 1 to {MAX_PAGE}", param="limit")
        names = await self._store.batches(request.client.tenant)
        if after:
            names = names[names.index(after) + 1 :] if after in names else []
        batch_views = [
            await self._batch_json(batch) for name in names[: int(limit)] if (batch := await self._store.batch(name))
        ]
        return _json(_page(batch_views, more=len(names) > int(limit)))

    async def _show(self, request: RequestContext, identity: str) -> Response:
        return _json(await self._batch_json(await self._batch(request, identity)))

    async def _cancel(self, request: RequestContext, identity: str) -> Response:
        batch = await self._batch(request, identity)
        if batch.open:
            await self._store.cancel(identity)
            self._on_created()
        return _json(await self._batch_json(await self._batch(request, identity)))

    async def _batch(self, request: RequestContext, identity: str) -> JobBatch:
        """Return the batch. Raise `NotFound`, also if it belongs to another tenant."""
        batch = await self._store.batch(identity)
        if batch is None or batch.tenant != request.client.tenant:
            raise NotFound("there is no such batch")
        return batch

    async def _batch_json(self, batch: JobBatch) -> dict[str, Any]:
        if batch.open and await self._store.is_cancelled(batch.id):
            batch = batch.with_status("cancelling", self._clock.wall())
        return batch_json(batch, *await self._store.request_counts(batch.id))


def _parse_form(body: bytes, content_type: str) -> tuple[bytes, str, str]:
    """Return (the file, its name, its purpose). Raise `BadRequest`."""
    kind, options = parse_options_header(content_type)
    boundary = options.get("boundary")
    if kind != "multipart/form-data" or not boundary:
        raise BadRequest("the body is invalid: expected multipart/form-data with 'file' and 'purpose'")
    limit = max(1, len(body))  # the body is in memory already
    try:
        parser = MultipartParser(BytesIO(body), boundary, strict=True, memory_limit=limit, spool_limit=limit)
        parts = {part.name: part for part in parser.parts()}
    except MultipartError as error:
        raise BadRequest(f"the multipart form is malformed: {error}") from None
    file, purpose = parts.get("file"), parts.get("purpose")
    if file is None or purpose is None:
        raise BadRequest("the form is incomplete: expected 'file' and 'purpose'")
    return file.raw, (file.filename or "file.jsonl")[:256], purpose.value


def _page(data: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}


def _json(body: Mapping[str, Any]) -> Response:
    headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
    return Response(200, headers, FullBody(orjson.dumps(body)), PROVENANCE)
