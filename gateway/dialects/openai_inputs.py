"""The inputs of an OpenAI embeddings call, each of which is a call by itself. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.dialects.openai_answers import reading
from gateway.errors import Malformed
from gateway.messages import Call

Parse = Callable[[dict[str, Any]], Call]


class Inputs:
    """Implements `Batch`. `parse` makes a call of a body that has been checked already."""

    def __init__(self, parse: Parse) -> None:
        self._parse = parse

    def apart(self, call: Call) -> tuple[Call, ...]:
        """As if each input had been sent alone, and not in an array: so both forms share what is stored."""
        return tuple(self._parse({**call.body, "input": one}) for one in call.body["input"])

    def gathered(self, calls: Sequence[Call]) -> Call:
        return self._parse({**calls[0].body, "input": [call.body["input"] for call in calls]})

    def divided(self, calls: Sequence[Call], whole: bytes) -> list[bytes]:
        with reading():
            body = orjson.loads(whole)
            found = {item["index"]: item for item in body["data"]}
            if sorted(found) != list(range(len(calls))):
                raise Malformed(f"the answer has {len(body['data'])} embeddings, expected {len(calls)} in their order")
            tokens = _shares(calls, _tokens(body))
            return [
                orjson.dumps({**body, "data": [{**found[i], "index": 0}], "usage": _usage(tokens[i])})
                for i in range(len(calls))
            ]

    def joined(self, wholes: Sequence[bytes]) -> bytes:
        if len(wholes) == 1:
            return wholes[0]
        with reading():
            bodies = [orjson.loads(whole) for whole in wholes]
            data = [{**body["data"][0], "index": i} for i, body in enumerate(bodies)]
            return orjson.dumps({**bodies[0], "data": data, "usage": _usage(sum(map(_tokens, bodies)))})


def _tokens(body: Mapping[str, Any]) -> int:
    return int((body.get("usage") or {}).get("prompt_tokens") or 0)


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _shares(calls: Sequence[Call], tokens: int) -> list[int]:
    """What each input has of the tokens of all: a backend tells only their sum. By length, which is exact for inputs
    of tokens and close for texts; the shares add up to the sum."""
    lengths = [max(1, len(call.body["input"])) for call in calls]
    total, given, seen, shares = sum(lengths), 0, 0, []
    for length in lengths:
        seen += length
        share = tokens * seen // total - given
        shares.append(share)
        given += share
    return shares
