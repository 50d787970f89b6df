"""Tensors of the Open Inference Protocol, in one form whatever they came in: raw bytes, little-endian, row by row; of
BYTES each element with its length before it (https://github.com/kserve/open-inference-protocol, Triton's
extension_binary_data)."""

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
    "BF16": np.dtype("<u2"),  # the upper half of an FP32; numpy has no such number
}
FLOATS = frozenset({"FP16", "FP32", "FP64", "BF16"})
DATATYPES = (*NUMBERS, "BYTES")
MAX_DIMENSIONS = 32  # numpy's own older bound
_LENGTH = struct.Struct("<I")


class TensorInvalid(ValueError):
    """What is wrong with a tensor, and what was expected: one sentence without its name."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """`data`: the content in raw form; None where it is not in the message (shared memory). `json_value`: JSON that
    could not be read as a tensor of this kind, and goes on as it came; None: there is none. `binary`: it came, or is to
    go, as bytes behind the JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: Mapping[str, Any]
    data: bytes | None
    binary: bool = True
    json_value: Any = None

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


def validate_content(data: bytes, datatype: str, shape: Sequence[int]) -> bytes:
    """Raw content that is what datatype and shape say. Raises `TensorInvalid`."""
    count = math.prod(shape)
    if datatype == "BYTES":
        found = sum(1 for _ in elements(data))
        if found != count:
            raise TensorInvalid(f"has {found} elements, expected {count} of shape {list(shape)}")
        return data
    expected = count * _numpy_dtype(datatype).itemsize
    if len(data) != expected:
        raise TensorInvalid(f"has {len(data)} bytes, expected {expected} of {datatype} in shape {list(shape)}")
    return data


def elements(data: bytes) -> Iterator[bytes]:
    """The elements of a BYTES tensor. Raises `TensorInvalid`."""
    at, end = 0, len(data)
    while at < end:
        if at + 4 > end:
            raise TensorInvalid("is cut within the length of an element")
        (length,) = _LENGTH.unpack_from(data, at)
        at += 4
        if at + length > end:
            raise TensorInvalid(f"has an element of {length} bytes, of which {end - at} are there")
        yield data[at : at + length]
        at += length


def pack_strings(items: Sequence[bytes]) -> bytes:
    """The raw form of a BYTES tensor."""
    return b"".join(_LENGTH.pack(len(item)) + item for item in items)


def from_json(value: Any, datatype: str, shape: Sequence[int]) -> bytes:
    """The raw form of JSON data, flat or nested. Raises `TensorInvalid`."""
    flat, kinds = _flatten(value)
    if len(flat) != math.prod(shape):
        raise TensorInvalid(f"has {len(flat)} elements, expected {math.prod(shape)} of shape {list(shape)}")
    if datatype == "BYTES":
        if not kinds <= {str}:
            raise TensorInvalid("has data that are no strings, expected BYTES")
        return pack_strings([text.encode() for text in flat])
    return _convert(flat, kinds, datatype, _numpy_dtype(datatype)).tobytes()


def _flatten(value: Any) -> tuple[list[Any], set[type]]:
    """The elements row by row, and of which types they are."""
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
            raise TensorInvalid("has data that are neither true nor false, expected BOOL")
        return np.array(flat, dtype)
    wanted, json_value = ({int, float}, "numbers") if datatype in FLOATS else ({int}, "whole numbers")
    if not kinds <= wanted:
        raise TensorInvalid(f"has data that are no {json_value}, expected {datatype}")
    try:
        with np.errstate(over="ignore"):
            if datatype in FLOATS:
                found = np.array(flat, "<f8")
                return _bfloat16(found) if datatype == "BF16" else found.astype(dtype)
            return np.array(flat, dtype)  # numpy says where a number does not fit
    except OverflowError:
        raise TensorInvalid(f"has numbers beyond {datatype}") from None


def _bfloat16(found: NDArray[Any]) -> NDArray[Any]:
    """To the nearest, ties to even; what is no number stays none."""
    with np.errstate(over="ignore"):
        bits = found.astype("<f4").view("<u4")
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype("<u2")


def to_json(data: bytes, datatype: str) -> list[Any]:
    """The flat JSON data of a raw form. Raises `TensorInvalid` for bytes that are no text, which JSON cannot say."""
    if datatype == "BYTES":
        try:
            return [item.decode() for item in elements(data)]
        except UnicodeDecodeError:
            raise TensorInvalid("has bytes that are no text, which JSON cannot say: expected binary_data") from None
    found = np.frombuffer(data, _numpy_dtype(datatype))
    if datatype == "BF16":
        found = (found.astype("<u4") << 16).view("<f4")
    if found.dtype.kind != "f" or found.dtype.itemsize == 8:
        return found.tolist()  # type: ignore[no-any-return]
    if not np.isfinite(found).all():
        return [float(str(number)) for number in found]
    # The shortest decimals that are this number again: 0.1 rather than 0.10000000149011612.
    return orjson.loads(orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY))  # type: ignore[no-any-return]


def _numpy_dtype(datatype: str) -> np.dtype[Any]:
    dtype = NUMBERS.get(datatype)
    if dtype is None:
        raise TensorInvalid(f"is of datatype {datatype[:40]!r}, expected one of {', '.join(DATATYPES)}")
    return dtype
