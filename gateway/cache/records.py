"""Entries as they lie in the store: msgpack, with a version, never pickle. Pure."""

from __future__ import annotations

from dataclasses import astuple, fields

import msgpack

from gateway.messages import Entry

VERSION = 1
_FIELDS = tuple(field.name for field in fields(Entry))


class RecordInvalid(ValueError):
    """The bytes are no entry of this version; the caller treats them as absent."""


def encode(entry: Entry) -> bytes:
    packed: bytes = msgpack.packb((VERSION, *astuple(entry)), use_bin_type=True)
    return packed


def decode(data: bytes) -> Entry:
    """Raises `RecordInvalid`."""
    try:
        version, *values = msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=True)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RecordInvalid(f"not a record: {type(error).__name__}") from None
    if version != VERSION or len(values) != len(_FIELDS):
        raise RecordInvalid(f"a record of version {version!r}, expected {VERSION}")
    return Entry(*values)
