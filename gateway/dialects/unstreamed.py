"""Common parts of protocols without streams, of whose contents the gateway knows little."""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from gateway.calls import Call, Inspection, TextAnswer
from gateway.dialects.base import BaseDialect
from gateway.dialects.json_body import dump_json, is_json
from gateway.dialects.reported_errors import read_error
from gateway.errors import BadRequest, MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission


class Unstreamed(BaseDialect):
    """`Unstreamed` is the part of a `Dialect` without streams, and without text that could take another form."""

    path: re.Pattern[str]  # matches the whole path of the dialect's requests

    def claims(self, method: str, path: str) -> bool:
        return method == "POST" and self.path.fullmatch(path) is not None

    def claimed(self, path: str) -> re.Match[str]:
        """Return the match of a path that was claimed."""
        match = self.path.fullmatch(path)
        assert match is not None
        return match

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        """Accept any response with status 200 that is not empty."""
        return Inspection(Admission.STORED if payload and payload[0] else Admission.INCOMPLETE, 0, 0)

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        raise MalformedResponse(f"the response is a stream, which {self.name} does not support")

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        raise MalformedResponse(f"a stream was requested, which {self.name} does not support")

    def renew(self, call: Call, data: bytes, *, answer_id: str, created: int) -> bytes:
        return data

    def event(self, call: Call, data: bytes) -> Event:
        return Event(data)

    def visible_events(self, call: Call, events: Sequence[Event]) -> Sequence[Event]:
        return events

    def answer_text(self, call: Call, payload: Sequence[bytes], streamed: bool) -> str | None:
        return None

    def text_answer(self, call: Call, *, answer_id: str, created: int, model: str) -> TextAnswer:
        raise BadRequest(f"a backend that returns text cannot serve {self.name} requests")

    def embedding_answer(self, call: Call, vectors: Sequence[Sequence[float]], *, model: str) -> bytes:
        raise BadRequest(f"a backend that returns text cannot serve {self.name} requests")

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return orjson.dumps({"error": message})

    def error_answer(self, event: Event) -> tuple[int, bytes] | None:
        reported = read_error(event)
        if reported is None:
            return None
        if "error" in reported.body:
            return reported.status, dump_json(reported.body)
        return reported.status, self.error(reported.kind, reported.message)

    def is_end(self, event: Event) -> bool:
        return False

    def is_finished(self, last: Sequence[Event]) -> bool:
        return False

    def is_over(self, last: Sequence[Event]) -> bool:
        return not last or is_json(last[-1].data)

    def missing_end(self, last: Sequence[Event]) -> tuple[Event, ...]:
        return ()

    def error_events(self, kind: str, message: str) -> tuple[Event, ...]:
        return (Event(self.error(kind, message)),)
