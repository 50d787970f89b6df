"""Yield all texts of a call that an answer may repeat, in each dialect. Pure."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import cast

import orjson

from gateway.calls import Call, Content

# Names of the client, which no cache stores, and definitions by its developer. An answer may repeat all other fields.
_UNREAD_FIELDS = frozenset(
    {
        *("model", "user", "safety_identifier", "metadata", "client_metadata", "prompt_cache_key"),
        *("tools", "functions", "response_format", "text", "output_config"),
    }
)
# An image or a sound, in base64, or a file with a text.
_BINARY = re.compile(r"(?:data:[\w/+.;=-]{1,128},)?([A-Za-z\d+/=_-]{1024,})")
_HEAD = 64  # characters of base64, which tell a text from an image
MIN_NUMBER = 10**8  # a smaller number is neither a card nor a telephone number
MIN_NAME = 6  # characters of a field's name that may be an address, such as a@b.co
_LABELS = re.compile(r"ssn|social|phone|telefon|mobile|tel|fax|cell|whatsapp", re.IGNORECASE)  # they tell a kind


def texts_of(call: Call) -> Iterator[str]:
    """Yield the texts of a call: of a conversation, all turns with the tools' calls and results.

    Numbers and the names of fields count. A value comes with the name of its field where that tells its kind.
    """
    waiting: list[object] = [{name: value for name, value in call.body.items() if name not in _UNREAD_FIELDS}]
    labels: dict[str, bool] = {}  # the names of fields so far, and whether they tell a kind
    while waiting:  # not a recursion: a body may be nested deeply
        value = waiting.pop()
        if isinstance(value, str):
            binary = _BINARY.fullmatch(value)
            if binary is None:
                yield value
            else:
                waiting += _file_of(binary)
        elif isinstance(value, Mapping):
            for name, part in value.items():
                if name not in labels:
                    labels[name] = _LABELS.search(name) is not None
                    if len(name) >= MIN_NAME:
                        yield name
                if labels[name] and isinstance(part, str | int):
                    yield f"{name}: {part}"
                else:
                    waiting.append(part)
        elif isinstance(value, list | tuple):
            if not _is_tensor(value):
                waiting += value
        else:
            waiting += _parts_of(value)


def _parts_of(value: object) -> Iterator[object]:
    """Yield what texts may be in a value that JSON does not know, or the text of a long number."""
    if isinstance(value, int | float):
        if value >= MIN_NUMBER and value == value // 1:
            yield f"{value:.0f}"
    elif isinstance(value, bytes):
        yield from _decoded(value)
    elif isinstance(value, Content):
        yield from value.texts()


def _file_of(binary: re.Match[str]) -> Iterator[object]:
    """Yield the text of a file in base64; nothing if it is an image or a sound."""
    encoded = binary[1].replace("-", "+").replace("_", "/")
    if decoded_text(encoded[:_HEAD]) is not None:
        with suppress(ValueError):
            yield from _decoded(b64decode(encoded + "=" * (-len(encoded) % 4)))


def decoded_text(encoded: str) -> str | None:
    """Return the text in base64, or None if it is no text."""
    try:
        text = b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode("utf-8", "strict")
    except ValueError:
        return None
    return text if text.replace("\n", "").replace("\r", "").replace("\t", "").isprintable() else None


def _decoded(data: bytes) -> Iterator[object]:
    """Yield the JSON or the text of a file; nothing if it is none."""
    with suppress(ValueError):
        if data.startswith((b"{", b"[")):
            yield orjson.loads(data)
            return
    with suppress(ValueError):
        yield data.decode()


def _is_tensor(values: list[object] | tuple[object, ...]) -> bool:
    """Return whether a list has small numbers only, such as a vector or the numbers of tokens."""
    if not values or type(values[0]) not in (int, float) or not set(map(type, values)) <= {int, float}:
        return False
    return max(cast("list[float]", values)) < MIN_NUMBER
