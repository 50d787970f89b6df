"""TensorFlow Serving's REST API: predict, classify and regress (https://www.tensorflow.org/tfx/serving/api_rest)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.calls import Call, Decisive, Inspection, Outgoing
from gateway.dialects.equal_forms import Field, Table, with_defaults_left_out
from gateway.dialects.json_body import dump_json, parse_numbers
from gateway.dialects.known import path_of
from gateway.dialects.unstreamed import Unstreamed
from gateway.errors import BadRequest
from gateway.outcomes import Admission, Bypass

# A body must have exactly one of these: rows or columns for predict, examples for the others.
INPUT_KEYS = {"predict": ("instances", "inputs"), "classify": ("examples",), "regress": ("examples",)}
OUTPUT_KEYS = {
    "predict": ("predictions", "outputs"),
    "classify": ("result", "results"),
    "regress": ("result", "results"),
}
PREDICT: Table = {"signature_name": Field(("serving_default",))}  # "if unspecified, the default serving signature"


class TFServing(Unstreamed):
    """`TFServing` accepts NaN, Infinity and -Infinity as numbers, which the server itself reads and writes."""

    name = "tfserving"
    path = path_of("tfserving")

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        model, rest, verb = self.claimed(path).groups()
        value = parse_numbers(body)
        given = [key for key in INPUT_KEYS[verb] if key in value]
        if len(given) != 1:
            raise BadRequest(
                f"the body has {given or 'none'} of {', '.join(INPUT_KEYS[verb])}: expected exactly one of them"
            )
        if given[0] != "inputs" and not isinstance(value[given[0]], list):
            raise BadRequest(f"'{given[0]}' is of the wrong type: expected an array")
        canonical = dump_json([model, rest, with_defaults_left_out(value, PREDICT)], canonical=True)
        return Call(
            dialect=self,
            operation=verb,
            body=value,
            model=model,
            stream=False,
            decisive_source=Decisive(canonical, canonical, None, Bypass.NO_TEXT),
            prompt_source=" ".join(_texts(value[given[0]])),
            max_tokens=None,
            user=None,
        )

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        match = self.claimed(path)
        return Outgoing(f"/v1/models/{model or match[1]}{match[2]}", dump_json(call.body))

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        try:
            answer = parse_numbers(payload[0])
        except (BadRequest, IndexError):
            return Inspection(Admission.MALFORMED, 0, 0)
        if "error" in answer:
            return Inspection(Admission.ERROR_STATUS, 0, 0)
        complete = any(key in answer for key in OUTPUT_KEYS[call.operation])
        return Inspection(Admission.STORED if complete else Admission.MALFORMED, 0, 0)

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        return orjson.dumps({"error": message})


def _texts(value: Any, depth: int = 8) -> Iterator[str]:
    """Yield the strings of a tensor, to judge complexity. Deeper nesting than `depth` is not a tensor of texts."""
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item, depth - 1)
