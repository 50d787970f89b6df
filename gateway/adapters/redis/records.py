"""The encoding of entries in the store: a version, a CRC-32 of the rest, then msgpack, never pickle. Pure.

With keys a record is encrypted as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Protocol, get_origin, get_type_hints
from zlib import crc32

import msgpack

from gateway.entries import Entry

VERSION = 4
SEALED = b"\x80"  # no version of a plain record begins like this

NAMELESS = 3  # the version before entries named their subjects, the last field

_HEAD = struct.Struct(">BI")

# The type that msgpack must return for each field, in order; an int is accepted for a float.
_TYPES = tuple(
    int | float if hint is float else tuple if get_origin(hint) is tuple else hint
    for hint in get_type_hints(Entry).values()
)

_NAMES = tuple(field.name for field in fields(Entry))

# One for all calls: creating it takes a quarter of the time. A failed call leaves no state behind.
_pack = msgpack.Packer(use_bin_type=True).pack

_values_of = attrgetter(*_NAMES)  # `dataclasses.astuple` copies deeply: 35 us


def encode(entry: Entry) -> bytes:
    packed: bytes = _pack(_values_of(entry))
    return _HEAD.pack(VERSION, crc32(packed)) + packed


def decode(data: bytes) -> Entry:
    """Decode an entry. Raise `RecordInvalid`."""
    if len(data) < _HEAD.size or data[0] not in (VERSION, NAMELESS):
        raise RecordInvalid(f"not a record of version {VERSION}")
    types = _TYPES if data[0] == VERSION else _TYPES[:-1]
    packed = memoryview(data)[_HEAD.size :]
    if crc32(packed) != _HEAD.unpack_from(data)[1]:
        raise RecordInvalid("a record whose checksum does not fit")
    try:
        values = msgpack.unpackb(packed, use_list=False, raw=False, strict_map_key=True)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RecordInvalid(f"not a record: {type(error).__name__}") from None
    if not isinstance(values, tuple) or len(values) != len(types) or not all(map(isinstance, values, types)):
        raise RecordInvalid("a record with a field of the wrong type")
    entry = Entry(*values)
    if not all(isinstance(name, str) for name in (*entry.askers, *entry.subjects)):
        raise RecordInvalid("a record with an asker or a subject of the wrong type")
    if not all(isinstance(data, bytes) for data in entry.payload) or not (entry.streamed or len(entry.payload) == 1):
        raise RecordInvalid("a record without an answer")
    return entry


class RecordInvalid(ValueError):
    """The bytes are not an entry of this version. The caller treats them as absent."""


class SealingKeys(Protocol):
    """The keys of encrypted records. The first one seals, all of them open."""

    @property
    def id(self) -> str:
        """The id of the first key, in hex."""

    def seal(self, record: bytes, fingerprint: str) -> bytes:
        """Encrypt a record, so that it opens under this fingerprint only. The result begins with `SEALED`."""

    def open(self, sealed: bytes, fingerprint: str) -> bytes:
        """Decrypt a record. Raise `RecordInvalid`."""

    def is_current(self, record: bytes) -> bool:
        """Return whether the first key has sealed a record."""


class RecordCodec:
    """`RecordCodec` encodes and decodes the records of one store.

    Without `keys` records are plain. Unless `read_plain`, it refuses a plain record, so that nobody can put one in the
    place of an encrypted one.
    """

    def __init__(self, keys: SealingKeys | None = None, *, read_plain: bool = True) -> None:
        self.keys = keys
        self._reads_plain = read_plain or keys is None
        self.encode: Callable[[Entry], bytes] = encode if keys is None else self._sealed

    def _sealed(self, entry: Entry) -> bytes:
        assert self.keys is not None
        return self.keys.seal(encode(entry), entry.fingerprint)

    def decode(self, data: bytes, fingerprint: str) -> Entry:
        """Decode the record of an entry. Raise `RecordInvalid`."""
        if data[:1] == SEALED:
            if self.keys is None:
                raise RecordInvalid("an encrypted record, and there is no key (store.encryption)")
            return decode(self.keys.open(data, fingerprint))
        if not self._reads_plain:
            raise RecordInvalid("a plain record, which store.encryption.read_plain refuses")
        return decode(data)


PLAIN = RecordCodec()
