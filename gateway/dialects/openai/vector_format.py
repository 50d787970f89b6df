"""Give the vectors of an embeddings response the `encoding_format` of their request. Pure.

The official clients ask for `base64`: the numbers of a vector as little-endian float32. Many servers ignore the field
and answer with numbers. Then some clients fail, and others take the numbers for bytes.
"""

from __future__ import annotations

import base64 as b64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gateway.dialects.json_body import dump_json, load_json
from gateway.errors import MalformedResponse

FIRST = re.compile(rb'"embedding"\s*:\s*(.)')  # the first vector tells the form of all, and stands near the beginning
WIDTH = 4  # bytes of a float32


def with_vector_format(data: bytes, encoding_format: Any) -> bytes:
    """Return the body with all vectors in the format; unchanged if they have it, or if it cannot be parsed.

    Formats other than `base64` and `float` are the backend's own.
    """
    first = FIRST.search(data)
    if encoding_format == "base64" and first and first[1] == b"[":
        return _convert(data, _to_text)
    if encoding_format == "float" and first and first[1] == b'"':
        return _convert(data, _to_numbers)
    return data


def encode_vector(vector: Any) -> str:
    """Return the numbers as base64 of little-endian float32. Raise `ValueError` or `TypeError` for anything else."""
    return b64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


def _to_text(vector: Any) -> Any:
    return encode_vector(vector) if isinstance(vector, list) else vector


def _to_numbers(vector: Any) -> Any:
    packed = b64.b64decode(vector, validate=True) if isinstance(vector, str) else b""
    return np.frombuffer(packed, dtype="<f4").tolist() if packed and len(packed) % WIDTH == 0 else vector


def _convert(data: bytes, convert: Callable[[Any], Any]) -> bytes:
    try:
        body = load_json(data)
        items = [{**item, "embedding": convert(item["embedding"])} for item in body["data"]]
    except (ValueError, TypeError, KeyError):
        return data
    return dump_json({**body, "data": items})


def in_order(items: Sequence[Mapping[str, Any]], count: int) -> Sequence[Mapping[str, Any]]:
    """Return the embeddings of `count` inputs in the order of the inputs: by `index`, if each has its own.

    Some servers leave out the index, or send null or 0 with each: their order is that of the inputs. Raise
    `MalformedResponse` if there are more or fewer, or if only some of them have an index.
    """
    if len(items) != count:
        raise MalformedResponse(f"the response has {len(items)} embeddings: expected {count}, one for each input")
    indices: list[Any] = [item.get("index") for item in items]
    numbers = [float(index) for index in indices if isinstance(index, int | float) or str(index).isdecimal()]
    if len(set(numbers)) == count:
        return [items[i] for i in sorted(range(count), key=numbers.__getitem__)]
    if any(index != indices[0] for index in indices):
        raise MalformedResponse("the response has embeddings with repeated indices: expected one for each input")
    return items


def has_vectors(items: Any) -> bool:
    """Return whether each item has a vector of finite numbers.

    Servers send nulls, NaN or nothing for an input that their model cannot embed.
    """
    return isinstance(items, list) and bool(items) and all(_is_vector(item["embedding"]) for item in items)


def _is_vector(vector: Any) -> bool:
    if isinstance(vector, str):
        try:
            raw = b64.b64decode(vector, validate=True)
        except binascii.Error:
            return False
        # Bytes that are no float32, such as int8 vectors, are not judged.
        return bool(raw) and (len(raw) % 4 != 0 or not np.isnan(np.frombuffer(raw, dtype="<f4")).all())
    if isinstance(vector, list) and vector and isinstance(vector[0], list):  # a vector a token
        return all(map(_is_vector, vector))
    return isinstance(vector, list) and bool(vector) and _is_finite(vector)


def _is_finite(vector: list[Any]) -> bool:
    try:
        return bool(np.isfinite(np.asarray(vector, dtype=np.float64)).all())
    except (TypeError, ValueError, OverflowError):
        return False
