"""A protocol of shouts: a text for a text. Capitals mean nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

from gateway.calls import Call, Decisive, Outgoing
from gateway.dialects.unstreamed import Unstreamed
from gateway.errors import BadRequest
from gateway.outcomes import Bypass


class Shout(Unstreamed):
    """`Shout` is the dialect of `POST /v1/shout`."""

    name = "shout"  # as in the entry point
    accepted_by = frozenset({"openai"})  # backends of this adapter get its requests, too
    path = re.compile("/v1/shout")

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise BadRequest("the shout is not UTF-8") from None
        decisive = text.upper().encode()
        return Call(
            dialect=self,
            operation="shout",
            body={"shout": text},
            model="",
            stream=False,
            decisive_source=Decisive(decisive, decisive, None, Bypass.NO_TEXT),
            prompt_source=text,
            max_tokens=None,
            user=None,
        )

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        return Outgoing(path, call.body["shout"].encode())

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return orjson.dumps({"shout": message.upper()})
