"""The defaults of a dialect, for those that need no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.calls import Call, ClientForm, StreamForm, TokenLogprobs, Translation
from gateway.dialect_traits import AnswerParts, DemandedForm, Endpoint, OpenParts, Tunable
from gateway.messages import KEEP_ALIVE, Event


class BaseDialect:
    """`BaseDialect` is the part of a `Dialect` that has a default."""

    name = ""
    id_header: str | None = None
    client_header: str | None = None
    accepted_by: frozenset[str] | None = frozenset()
    endpoint = Endpoint()
    stream_form: StreamForm | None = None
    keep_alive: Event = KEEP_ALIVE
    reads_comments = True
    relays = False
    reads_streams = True
    reforms = False
    reports_usage = False
    token_count_path: str | None = None
    to_neutral: Translation | None = None
    from_neutral: Translation | None = None
    logprobs: TokenLogprobs | None = None
    chains_answers = False
    settings_field: str | None = None

    def with_query(self, call: Call, query: str) -> Call:
        return call

    def translation_from(self, client: str) -> Translation | None:
        return None

    def fitted(self, call: Call, headers: Mapping[str, str]) -> Call:
        return call

    def renamed_path(self, path: str, rename: Callable[[str], str | None]) -> str:
        return path

    def continued(self, call: Call) -> str | None:
        return None

    def tunable(self, call: Call) -> Tunable | None:
        return None

    def demanded_form(self, call: Call) -> DemandedForm:
        return DemandedForm(None, {})

    def answer_parts(self, call: Call, payload: Sequence[bytes], streamed: bool) -> AnswerParts | None:
        return AnswerParts()

    def is_free(self, call: Call) -> bool:
        return False

    def has_text(self, call: Call) -> bool:
        return bool(call.prompt)

    def estimate_tokens(self, body: Mapping[str, Any]) -> int | None:
        return None

    def token_count(self, tokens: int) -> bytes:
        return orjson.dumps({"input_tokens": tokens})

    def open_parts(self, call: Call) -> OpenParts | None:
        return None

    def stored_form(self, call: Call, data: bytes, headers: Mapping[str, str]) -> bytes:
        return data

    def client_form(self, call: Call, data: bytes) -> ClientForm | None:
        return None

    def shown(self, call: Call, event: Event) -> bool:
        return True
