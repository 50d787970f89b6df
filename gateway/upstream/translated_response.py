"""An answer in the backend's dialect, put into the client's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

from gateway.body_streams import Guarded, close_body
from gateway.errors import BackendError, Malformed, StreamBroken
from gateway.messages import Event, EventStream, Response, Whole
from gateway.ports import Translated


async def in_the_clients_dialect(name: str, response: Response, translated: Translated) -> Response:
    """Raises `BackendError` where the answer cannot be read. `name`: the backend's."""
    body = response.body
    try:
        if isinstance(body, EventStream):
            return replace(response, body=EventStream(Guarded(_events(body.events, translated), source=body.events)))
        if isinstance(body, Whole):
            said = translated.whole(body.data) if response.status == 200 else None
            return _json(response, translated.error(response.status, body.data) if said is None else said)
    except Malformed as error:
        raise BackendError(f"backend '{name}': {error}", retryable=False) from None
    await close_body(body)
    raise BackendError(f"backend '{name}' sent an answer that is too large to be translated", retryable=False)


def _json(response: Response, data: bytes) -> Response:
    headers = tuple(header for header in response.headers if header[0].lower() != "content-type")
    return replace(response, headers=(*headers, ("Content-Type", "application/json")), body=Whole(data))


async def _events(events: AsyncIterator[Event], translated: Translated) -> AsyncGenerator[Event, None]:
    async for event in events:
        try:
            said = translated.events(event)
        except Malformed as error:
            raise StreamBroken(str(error)) from None
        for each in said:
            yield each
