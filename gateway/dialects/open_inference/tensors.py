"""Tensors of the Open Inference Protocol in one form: raw bytes, little-endian, in row-major order.

In BYTES tensors each element is preceded by its length. See https://github.com/kserve/open-inference-protocol and
Triton's extension_binary_data.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

NUMBERS = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),  # the upper half of an FP32; numpy has no such type
}
FLOATS = frozenset({"FP16", "FP32", "FP64", "BF16"})
DATATYPES = (*NUMBERS, "BYTES")
MAX_DIMENSIONS = 32  # numpy's older limit
_LENGTH = struct.Struct("<I")


class TensorInvalid(ValueError):
    """The tensor is invalid. The message says what was wrong and what was expected, without the tensor's name."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. `data` is its raw content, or None if it is not in the message (shared memory).

    `json_value` is JSON that could not be parsed as a tensor and is forwarded unchanged, or None. The content of a
    `binary` tensor comes, or goes, as bytes after the JSON.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: Mapping[str, Any]
    data: bytes | None
    binary: bool = True
    json_value: Any = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def validate_content(data: bytes, datatype: str, shape: Sequence[int]) -> bytes:
    """Return the raw content if it fits datatype and shape. Raise `TensorInvalid`."""
    count = math.prod(shape)
    if datatype == "BYTES":
        size = sum(1 for _ in elements(data))
        if size != count:
            raise TensorInvalid(f"has {size} elements, expected {count} of shape {list(shape)}")
        return data
    expected = count * _numpy_dtype(datatype).itemsize
    if len(data) != expected:
        raise TensorInvalid(f"has {len(data)} bytes, expected {expected} of {datatype} in shape {list(shape)}")
    return data


def elements(data: bytes) -> Iterator[bytes]:
    """Yield the elements of a BYTES tensor. Raise `TensorInvalid`."""
    at, end = 0, len(data)
    while at < end:
        if at + 4 > end:
            raise TensorInvalid("ends within the 4-byte length of an element")
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        if at + length > end:
            raise TensorInvalid(f"has an element of {length} bytes, but only {end - at} bytes follow")
        yield data[at : at + length]
        at += length


def pack_strings(items: Sequence[bytes]) -> bytes:
    """Return the raw form of a BYTES tensor."""
    return b"".join(_LENGTH.pack(len(item)) + item for item in items)


def from_json(value: Any, datatype: str, shape: Sequence[int]) -> bytes:
    """Convert JSON data, flat or nested, to the raw form. Raise `TensorInvalid`."""
    flat, kinds = _flatten(value)
    if len(flat) != math.prod(shape):
        raise TensorInvalid(f"has {len(flat)} elements, expected {math.prod(shape)} of shape {list(shape)}")
    if datatype == "BYTES":
        if not kinds <= {str}:
            raise TensorInvalid("has data other than strings, expected BYTES")
        return pack_strings([text.encode() for text in flat])
    return _convert(flat, kinds, datatype, _numpy_dtype(datatype)).tobytes()


def _flatten(value: Any) -> tuple[list[Any], set[type]]:
    """Return the elements in row-major order, and their types."""
    if not isinstance(value, list):
        raise TensorInvalid("has data of the wrong type: expected an array")
    for _ in range(MAX_DIMENSIONS):
        kinds = set(map(type, value))
        if list not in kinds:
            return value, kinds
        if len(kinds) > 1:
            raise TensorInvalid("is ragged: expected rows of equal depth")
        value = list(chain.from_iterable(value))
    raise TensorInvalid(f"is nested deeper than {MAX_DIMENSIONS} arrays")


def _convert(flat: list[Any], kinds: set[type], datatype: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    if datatype == "BOOL":
        if not kinds <= {bool}:
            raise TensorInvalid("has data other than true and false, expected BOOL")
        return np.array(flat, dtype)
    wanted, json_value = ({int, float}, "numbers") if datatype in FLOATS else ({int}, "whole numbers")
    if not kinds <= wanted:
        raise TensorInvalid(f"has data other than {json_value}, expected {datatype}")
    try:
        with np.errstate(over="ignore"):
            if datatype in FLOATS:
                numbers = np.array(flat, "<f8")
                return _bfloat16(numbers) if datatype == "BF16" else numbers.astype(dtype)
            return np.array(flat, dtype)  # numpy raises if a number does not fit
    except OverflowError:
        raise TensorInvalid(f"has numbers outside the range of {datatype}") from None


def _bfloat16(numbers: NDArray[Any]) -> NDArray[Any]:
    """Round to the nearest BF16, ties to even; NaN stays NaN."""
    with np.errstate(over="ignore"):
        bits = numbers.astype("<f4").view("<u4")
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype("<u2")


def to_json(data: bytes, datatype: str) -> list[Any]:
    """Convert the raw form to flat JSON data. Raise `TensorInvalid` for bytes that are not UTF-8."""
    if datatype == "BYTES":
        try:
            return [item.decode() for item in elements(data)]
        except UnicodeDecodeError:
            raise TensorInvalid(
                "has bytes that are not UTF-8, which JSON cannot express: expected 'binary_data'"
            ) from None
    numbers = np.frombuffer(data, _numpy_dtype(datatype))
    if datatype == "BF16":
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    if numbers.dtype.kind != "f" or numbers.dtype.itemsize == 8:
        return numbers.tolist()  # type: ignore[no-any-return]
    if not np.isfinite(numbers).all():
        return [float(str(number)) for number in numbers]
    # The shortest decimals that give this number again: 0.1 rather than 0.10000000149011612.
    return orjson.loads(orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY))  # type: ignore[no-any-return]


def _numpy_dtype(datatype: str) -> np.dtype[Any]:
    dtype = NUMBERS.get(datatype)
    if dtype is None:
        raise TensorInvalid(f"is of datatype {datatype[:40]!r}, expected one of {', '.join(DATATYPES)}")
    return dtype
