"""An answer that is read to its end before anybody gets any of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.body_streams import Ready, close_body, close_stream
from gateway.messages import Event, EventStream, Response, Whole

# As much as a flight holds for its readers; with log probabilities a token is some 200 bytes.
MAX_HELD_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Held:
    response: Response  # its status and headers
    events: tuple[Event, ...] | None  # None: it came whole
    whole: bytes = b""

    @property
    def streamed(self) -> bool:
        return self.events is not None

    @property
    def payload(self) -> tuple[bytes, ...]:
        """As in `Entry`."""
        return (self.whole,) if self.events is None else tuple(event.data for event in self.events)

    def released(self) -> Response:
        """In the form in which it came; a stream all at once."""
        body = Whole(self.whole) if self.events is None else EventStream(Ready(self.events))
        return replace(self.response, body=body)

    def changed(self, change: Callable[[bytes], bytes]) -> Held:
        """With the data of a whole body, or of each event, put through `change`."""
        if self.events is None:
            return replace(self, whole=change(self.whole))
        return replace(self, events=tuple(Event(change(event.data), event.name) for event in self.events))


async def held(response: Response, limit: int = MAX_HELD_BYTES) -> Held | None:
    """None where it is no answer, too long to be held, or of no known form; it is then given up. Raises
    `StreamBroken`."""
    body = response.body
    if response.status != 200 or not isinstance(body, Whole | EventStream):
        await close_body(body)
        return None
    if isinstance(body, Whole):
        return Held(response, None, body.data) if len(body.data) <= limit else None
    events: list[Event] = []
    size = 0
    try:
        async for event in body.events:
            size += len(event.data)
            if size > limit:
                return None
            events.append(event)
    finally:
        await close_stream(body.events)
    return Held(response, tuple(events))
