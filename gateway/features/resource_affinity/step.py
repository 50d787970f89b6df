"""Sends a request that names a resource to the backend that made it, and remembers who makes which."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gateway.adapters.redis.store import RedisStore
from gateway.config.policy.parameters import untuned
from gateway.context import Handler, RequestContext, resolve_response
from gateway.dialects.known import answers_client, client_of
from gateway.dialects.sse import SSEParser
from gateway.errors import BackendError, GatewayError
from gateway.features.resource_affinity.affinity import SHARED, ResourceAffinity
from gateway.features.resource_affinity.ids import (
    CONVERSATIONS,
    MAKERS,
    MAX_JSON_BYTES,
    collection_of,
    ids_in_call,
    ids_in_json,
    ids_in_location,
    ids_in_path,
    ids_in_query,
    reported_ids,
)
from gateway.features.resource_affinity.redis import RedisAffinity
from gateway.messages import Affinity, ByteStream, Event, EventStream, FullBody, Response, media_type
from gateway.streams import StreamObserver, close_body, with_observer
from gateway.upstream.backend import UpstreamPool

NOT_FOUND = 404
MAX_OTHERS = 4  # upstreams that are asked for an id that nobody knows
FIRST_EVENTS = 4  # of a stream of which one has the resource's id
ITEM_ADDED = "response.output_item.added"  # has the id of an item, which a later input may refer to

Remember = Callable[[Sequence[str]], None]


class ResourceStep:
    """Binds requests to backends. `pools` are all backends. `others` are those of the route that may have made an
    unknown resource. With `shared` all tenants get the route's answers, and their ids, from its cache."""

    def __init__(
        self,
        inner: Handler,
        affinity: ResourceAffinity,
        pools: Mapping[str, UpstreamPool],
        others: Sequence[UpstreamPool],
        *,
        shared: bool = False,
    ) -> None:
        self._inner = inner
        self._affinity = affinity
        self._pools = pools
        self._shared = shared
        self._others = [pool for pool in others if pool.http]

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        call = request.call
        if call is None:
            collection = collection_of(request.path)
            return self._inner(request) if collection is None else self._pass(request, collection)
        if call.operation not in CONVERSATIONS:
            return self._inner(request)
        ids, makes = ids_in_call(call, request.body), call.stored
        return self._call(request, ids, makes=makes) if ids or makes else self._inner(request)

    async def _call(self, request: RequestContext, ids: Sequence[str], *, makes: bool) -> Response:
        await self._bind(request, ids)
        response = await resolve_response(self._inner(request))
        return self._watch(request, response) if makes and response.status == 200 else response

    async def _pass(self, request: RequestContext, collection: str) -> Response:
        """Pass a request on whose path has resources."""
        in_path = ids_in_path(request.path)
        ids = [*in_path, *ids_in_query(request.query)]
        if request.method == "POST" and _is_json(request.headers.get("content-type", "")):
            ids += ids_in_json(await _buffered(request))
        await self._bind(request, ids)
        # Depends on method and path alone: requests with the same head share the form that is sent upstream.
        request.reads_answer = request.method == "POST" or (request.method == "GET" and collection in MAKERS)
        response = await resolve_response(self._inner(request))
        if (
            response.status == NOT_FOUND
            and request.method == "GET"
            and in_path
            and request.constraints.affinity is None
        ):
            response = await self._ask_others(request, response, in_path[0])
        return self._watch(request, response) if request.reads_answer and response.status in (200, 201) else response

    async def _bind(self, request: RequestContext, ids: Sequence[str]) -> None:
        if not ids:
            return
        request.require_capacity()
        affinity = await self._affinity.find(request.client.tenant, ids)
        if affinity is not None and affinity.backend in self._pools:
            request.constraints = request.constraints._replace(affinity=affinity)

    async def _ask_others(self, request: RequestContext, missing: Response, resource: str) -> Response:
        """Ask the other upstreams of the route for a resource that nobody remembers. A GET changes nothing.

        Return the first answer that finds it, else `missing`.
        """
        tried = (missing.provenance.backend, request.calls.address)
        client = client_of(request.headers)
        places = [
            Affinity(pool.name, None if pool.single is not None else endpoint.upstream.address)
            for pool in self._others
            for endpoint in pool.endpoints
            if answers_client(pool.speaks, client)
        ]
        untried = [place for place in places if place.backend != tried[0] or place.upstream not in (None, tried[1])]
        for place in untried[:MAX_OTHERS]:
            request.constraints = request.constraints._replace(affinity=place)
            try:
                response = await resolve_response(self._inner(request))
            except BackendError:
                continue
            if response.status < 400:
                await close_body(missing.body)
                self._affinity.remember(request.client.tenant, [resource], place)
                return response
            await close_body(response.body)
        request.constraints = request.constraints._replace(affinity=None)
        return missing

    def _watch(self, request: RequestContext, response: Response) -> Response:
        """Remember the ids that an answer reports, as they come."""
        backend = response.provenance.backend
        if backend is None:
            return response
        pool = self._pools.get(untuned(backend))
        if pool is None:
            return response
        place = Affinity(pool.name, None if pool.single is not None else request.calls.address)
        owners = (
            (request.client.tenant, SHARED) if self._shared and request.call is not None else (request.client.tenant,)
        )
        remember = partial(self._remember, owners, place)
        if response.status == 201:
            for name, value in response.headers:
                if name.lower() == "location":
                    remember(ids_in_location(value))
        body = response.body
        if isinstance(body, FullBody):
            whole = _UnparsedAnswer(remember, events=_is_events(response))
            whole.on_chunks((body.data,))
            whole.on_complete()
            return response
        if isinstance(body, EventStream):
            observer = StreamObserver(_events_watcher(remember))
            return replace(response, body=EventStream(with_observer(body.events, observer)))
        if isinstance(body, ByteStream):
            watched = _UnparsedAnswer(remember, events=_is_events(response))
            chunks = with_observer(body.chunks, StreamObserver(watched.on_chunks, watched.on_complete))
            return replace(response, body=ByteStream(chunks))
        return response

    def _remember(self, owners: Sequence[str], place: Affinity, ids: Sequence[str]) -> None:
        for owner in owners:
            self._affinity.remember(owner, ids, place)


def _events_watcher(remember: Remember) -> Callable[[Sequence[Event]], Sequence[Event]]:
    """Return an observer of events. The first ones have the id of the answer, a few others those of its items."""
    left = FIRST_EVENTS

    def observe(events: Sequence[Event]) -> Sequence[Event]:
        nonlocal left
        for event in events:
            if left > 0 or event.name == ITEM_ADDED:
                left -= 1
                remember(reported_ids(event.data))
        return events

    return observe


class _UnparsedAnswer:
    """The body of an answer as it passes: JSON, whole or in pieces, or events of which the first ones are read."""

    def __init__(self, remember: Remember, *, events: bool) -> None:
        self._remember = remember
        self._parser = SSEParser() if events else None
        self._left = FIRST_EVENTS
        self._pieces: list[bytes] = []
        self._size = 0

    def on_chunks(self, chunks: Sequence[bytes]) -> Sequence[bytes]:
        for chunk in chunks:
            self._size += len(chunk)
            if self._parser is None:
                if self._size <= MAX_JSON_BYTES or not self._pieces:
                    self._pieces.append(chunk)
            elif self._size > MAX_JSON_BYTES:
                self._left = 0
            elif self._left > 0:
                for event in self._parser.feed(chunk):
                    self._left -= 1
                    self._remember(reported_ids(event.data))
        return chunks

    def on_complete(self) -> None:
        if self._pieces:
            self._remember(reported_ids(b"".join(self._pieces)))


async def _buffered(request: RequestContext) -> bytes:
    """Return the body that is passed on, decoded; empty if it is too long to wait for, or can't be decoded."""
    await request.body_source.buffer()
    if request.body_source.buffered_body is None:
        return b""
    try:
        return request.body_source.read_nowait() or b""
    except GatewayError:  # the backend judges it
        return b""


def _is_events(response: Response) -> bool:
    return response.content_type.startswith("text/event-stream")


def _is_json(content_type: str) -> bool:
    return media_type(content_type) in ("application/json", "")


@dataclass(frozen=True, slots=True)
class SharedResources:
    """The makers of resources, which all routes share."""

    affinity: ResourceAffinity

    def step(
        self, inner: Handler, pools: Mapping[str, UpstreamPool], others: Sequence[UpstreamPool], *, shared: bool
    ) -> Handler:
        return ResourceStep(inner, self.affinity, pools, others, shared=shared).__call__

    async def close(self) -> None:
        await self.affinity.close()


def open_resources(store: RedisStore, timeout_s: float) -> SharedResources:
    """Open the makers of resources. `timeout_s` bounds each call of the store."""
    return SharedResources(ResourceAffinity(RedisAffinity(store, timeout_s=timeout_s)))
