"""Read the ids of resources: those that a request names, and those that an answer reports. Pure.

A backend makes a resource and stores it under an id. Responses, conversations, files, batches, vector stores and
threads are resources. Only the backend that made one knows its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson

from gateway.calls import Call

VERSION = "/v1/"
# The first segment of the paths under which OpenAI's, Azure's and Anthropic's APIs have resources.
COLLECTIONS = frozenset(
    {
        "assistants",
        "batches",
        "chat",  # `/v1/chat/completions/ID`: stored completions
        "containers",
        "conversations",
        "evals",
        "files",
        "fine_tuning",
        "messages",  # `/v1/messages/batches/ID`: Anthropic's batches
        "models",  # a model that was fine-tuned
        "realtime",  # `/v1/realtime/calls/ID`
        "responses",
        "skills",
        "threads",
        "uploads",
        "vector_stores",
        "videos",
    }
)
# Segments of those paths that are no ids.
WORDS = frozenset(
    {
        "accept",
        "batches",
        "calls",
        "cancel",
        "checkpoints",
        "client_secrets",
        "compact",
        "complete",
        "completions",
        "content",
        "count_tokens",
        "events",
        "file_batches",
        "files",
        "hangup",
        "input_items",
        "input_tokens",
        "items",
        "jobs",
        "messages",
        "output_items",
        "parts",
        "pause",
        "refer",
        "reject",
        "remix",
        "results",
        "resume",
        "runs",
        "search",
        "sessions",
        "steps",
        "submit_tool_outputs",
        "transcription_sessions",
        "versions",
    }
)
# A resource of these collections reports what it has made besides itself, such as the files with a batch's results.
MAKERS = frozenset({"batches", "fine_tuning"})
CONVERSATIONS = frozenset({"chat.completions", "responses", "messages"})  # the operations whose calls may name ids

MAX_ID = 256  # characters; a longer text is no id
MAX_NAMED = 16  # ids of one request that are looked up
MAX_REPORTED = 64  # ids of one answer that are remembered
MAX_NODES = 20_000  # objects and arrays of a body that are visited
MAX_COMMAS = 2 * MAX_NODES  # a body with more values is not read for ids
MAX_JSON_BYTES = 1024 * 1024  # a longer body is not read for ids

OWN_ID = re.compile(rb'"id"\s*:\s*"([!#-\[\]-~]{1,256})"')
HEAD_BYTES = 1024

# Keys that end like those of ids, but name no resource of a backend.
FOREIGN = frozenset(
    {
        "tool_call_id",
        "tool_use_id",
        "call_id",
        "user_id",
        "session_id",
        "request_id",
        "organization_id",
        "project_id",
        "previous_item_id",
        "approval_request_id",
        "client_id",
        "custom_id",
        "event_id",
        "model_id",
    }
)
ID_KEYS = frozenset({"conversation", "container", "training_file", "validation_file", "fine_tuned_model"})
TUNED = "ft:"  # begins the name of a model that a backend has fine-tuned
ID_LISTS = frozenset({"result_files", "file_ids", "vector_store_ids"})


def collection_of(path: str) -> str | None:
    """Return the first segment of a path with resources, such as `files`, or None if the path has none."""
    if not path.startswith(VERSION):
        return None
    first = path[len(VERSION) :].partition("/")[0]
    return first if first in COLLECTIONS else None


def ids_in_path(path: str) -> list[str]:
    """Return the ids in a path for which `collection_of` is not None."""
    segments = map(unquote, path[len(VERSION) :].split("/")[1:])
    return [segment for segment in segments if is_id(segment) and segment not in WORDS][:MAX_NAMED]


def ids_in_query(query: str) -> list[str]:
    """Return the values in a query that may be ids, such as that of `after`."""
    if not query:
        return []
    try:
        fields = parse_qsl(query, max_num_fields=2 * MAX_NAMED)
    except ValueError:
        return []
    return [value for _, value in fields if is_id(value)][:MAX_NAMED]


def ids_in_json(body: bytes) -> list[str]:
    """Return the ids that a body of JSON names; none if it is too long, or is no JSON."""
    return list(islice(_walk([value]), MAX_NAMED)) if (value := _parse(body)) is not None else []


def ids_in_call(call: Call, body: bytes) -> list[str]:
    """Return the ids that a call names: the responses, conversations, files and containers that it continues or uses.

    `body` is the request's. A call without such fields costs a search for two words in it.
    """
    request_body, roots = call.body, list[Any]()
    ids = [
        value
        for key in ("previous_response_id", "conversation", "container")
        for value in _values(request_body.get(key))
    ]
    if call.model.startswith(TUNED):
        ids += _values(call.model)
    tools = request_body.get("tools")
    if isinstance(tools, list):
        for tool in tools:
            if isinstance(tool, Mapping):
                for key in ("vector_store_ids", "container"):
                    ids += _values(tool.get(key))
    if b"file_id" in body or b"item_reference" in body:
        roots += [request_body.get(key) for key in ("messages", "input", "tools", "prompt", "tool_resources")]
    return list(dict.fromkeys([*ids, *islice(_walk(roots), MAX_NAMED)]))[:MAX_NAMED]


def ids_in_location(location: str) -> list[str]:
    """Return the ids in the `Location` of an answer that made something; it may be a URL or a path."""
    path = urlsplit(location).path
    return [] if collection_of(path) is None else ids_in_path(path)


def reported_ids(data: bytes) -> list[str]:
    """Return the ids that an answer, or one event of it, reports: its own first, then those of its parts.

    If the answer is too long, or cut off, only its own is read, because it stands at the beginning.
    """
    value = _parse(data)
    if not isinstance(value, dict):
        own = OWN_ID.search(data, 0, HEAD_BYTES)
        return [] if own is None else [own[1].decode()]
    ids: list[str] = []
    for each in (value, value.get("response"), value.get("item")):
        if isinstance(each, dict):
            ids += _reported(each)
    return list(dict.fromkeys(ids))[:MAX_REPORTED]


def _reported(value: Mapping[str, Any]) -> Iterator[str]:
    yield from _values(value.get("id"))
    for key, field in value.items():
        if key in ID_LISTS or key in ID_KEYS or _names_id(key):
            yield from _values(field)
    output = value.get("output")
    for item in output if isinstance(output, list) else ():
        if isinstance(item, Mapping):
            yield from _values(item.get("id"))
            yield from _values(item.get("container_id"))


def is_id(text: str) -> bool:
    return 0 < len(text) <= MAX_ID and text.isprintable() and " " not in text


def _values(field: Any) -> list[str]:
    """Return the ids in the value of a field: a text, an object with `id` or `file_ids`, or a list of texts."""
    if isinstance(field, str):
        return [field] if is_id(field) else []
    if isinstance(field, Mapping):
        return [*_values(field.get("id")), *_values(field.get("file_ids"))]
    if isinstance(field, list):
        return [each for each in field[:MAX_REPORTED] if isinstance(each, str) and is_id(each)]
    return []


def _names_id(key: str) -> bool:
    return key.endswith(("_id", "_ids")) and key not in FOREIGN


def _walk(roots: Iterable[Any]) -> Iterator[str]:
    """Yield the ids that fields name anywhere below `roots`."""
    stack, visited = list(roots), 0
    while stack and visited < MAX_NODES:
        value = stack.pop()
        visited += 1
        if isinstance(value, list):
            stack += reversed(value[:MAX_NODES])
        elif isinstance(value, dict):
            if value.get("type") == "item_reference":
                yield from _values(value.get("id"))
            for key, field in value.items():
                if key in ID_KEYS or key in ID_LISTS or _names_id(key):
                    yield from _values(field)
            stack += [field for field in value.values() if isinstance(field, dict | list)]


def _parse(data: bytes) -> Any:
    """Return the value; None if it is too large to be read on the event loop, or is no JSON."""
    if len(data) > MAX_JSON_BYTES:
        return None
    # Counting takes microseconds, and parsing a megabyte of `[],` 100 ms.
    if data.count(b"{") + data.count(b"[") > MAX_NODES or data.count(b",") > MAX_COMMAS:
        return None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
