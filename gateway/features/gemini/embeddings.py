"""Embeddings of Gemini's protocol: one content, or a batch of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from gateway.calls import Call
from gateway.dialects.json_body import ABSENT, dump_json, invalid_field, load_json
from gateway.dialects.openai.answers import reading
from gateway.errors import MalformedResponse
from gateway.features.gemini.requests import check_content, texts_of

ONE, BATCH = "embedContent", "batchEmbedContents"


def check_embedding_request(body: Mapping[str, Any], operation: str) -> None:
    """Check the fields that the gateway itself relies on. Raise `BadRequest`."""
    if operation == ONE:
        check_content(body.get("content", ABSENT), "content")
        return
    requests = body.get("requests", ABSENT)
    if not isinstance(requests, list) or not requests:
        raise invalid_field("requests", "a non-empty array", requests)
    for i, request in enumerate(requests):
        if not isinstance(request, dict):
            raise invalid_field(f"requests[{i}]", "an object", request)
        check_content(request.get("content", ABSENT), f"requests[{i}].content")


def requests_of(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the requests of a batch, or the one that the body is."""
    requests: Sequence[Mapping[str, Any]] = body.get("requests", [body])
    return requests


def inputs_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts to embed; empty if a content has anything else, such as a picture."""
    contents = [request["content"] for request in requests_of(body)]
    if any("text" not in part for content in contents for part in content.get("parts") or ()):
        return ()
    return tuple(map(texts_of, contents))


def renamed_body(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return a body with the backend's name of the model, where it names one: the API wants that of the path there."""
    named = {**body, "model": f"models/{model}"} if "model" in body else dict(body)
    if "requests" in body:
        named["requests"] = [{**request, "model": f"models/{model}"} for request in body["requests"]]
    return named


class BatchInputs:
    """`BatchInputs` implements `InputSplit`. `parse` makes a call from a body that was checked already. A request of a
    batch names the model again, which the path decides."""

    def __init__(self, parse: Callable[[dict[str, Any]], Call]) -> None:
        self._parse = parse

    def split(self, call: Call) -> tuple[Call, ...]:
        return tuple(self._parse({**call.body, "requests": [request]}) for request in call.body["requests"])

    def merge(self, calls: Sequence[Call]) -> Call:
        return self._parse({**calls[0].body, "requests": [call.body["requests"][0] for call in calls]})

    def split_answer(self, calls: Sequence[Call], whole: bytes) -> list[bytes]:
        with reading():
            body = load_json(whole)
            vectors = body["embeddings"]
            if len(vectors) != len(calls):
                raise MalformedResponse(f"the response has {len(vectors)} vectors: expected {len(calls)}")
            return [dump_json({"embeddings": [vector]}) for vector in vectors]

    def join_answers(self, wholes: Sequence[bytes]) -> bytes:
        if len(wholes) == 1:
            return wholes[0]
        with reading():
            return dump_json({"embeddings": [vector for whole in wholes for vector in load_json(whole)["embeddings"]]})


def has_vectors(body: Mapping[str, Any]) -> bool:
    """Return whether each embedding of an answer has numbers."""
    found = [body["embedding"]] if "embedding" in body else body["embeddings"]
    return bool(found) and all(isinstance(each.get("values"), list) and each["values"] for each in found)


def answer_of(vectors: Sequence[Sequence[float]], operation: str) -> bytes:
    values = [{"values": np.asarray(vector, dtype="<f4").tolist()} for vector in vectors]
    return orjson.dumps({"embedding": values[0]} if operation == ONE else {"embeddings": values})
