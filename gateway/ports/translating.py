"""Calls of one dialect before a backend that speaks another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.messages import Call, Event
from gateway.ports.answering import Outgoing


class Translated(Protocol):
    """One call in the backend's dialect, and the way back of its answer. Pure, but for what it remembers of the stream:
    each answer takes its own."""

    @property
    def outgoing(self) -> Outgoing: ...

    def whole(self, data: bytes) -> bytes:
        """The backend's body of status 200 -> the client's. Raises `Malformed`."""

    def events(self, event: Event) -> Sequence[Event]:
        """The next event of the backend's stream -> what the client is told of it. Raises `Malformed`."""

    def error(self, status: int, data: bytes) -> bytes:
        """The backend's body of another status, whatever it is -> an error in the client's shape."""


class Translation(Protocol):
    """From one dialect to another."""

    def __call__(self, call: Call, *, model: str | None, created: int) -> Translated:
        """`model`: the name that the backend is asked for; None: the client's. `created`: seconds since the epoch.
        Raises `BadRequest` on what the other dialect cannot say."""
