"""Entries as they lie in the store."""

from __future__ import annotations

import pickle
import struct
import time
from dataclasses import astuple, fields, replace
from zlib import crc32

import msgpack
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.adapters.redis.records import NAMELESS, VERSION, RecordInvalid, decode, encode
from gateway.entries import Entry
from gateway.features.export.lines import ImportedEntry, line_of, read_line
from tests.fixtures.entries import entry_of, hexed

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
FLOAT = st.floats(allow_nan=False)
COUNT = st.integers(0, 2**40)
ENTRIES = st.builds(
    Entry,
    fingerprint=TEXT, scope=TEXT, tenant=TEXT, route=TEXT, model=TEXT, operation=TEXT, dialect=TEXT,
    question=st.none() | TEXT, streamed=st.just(True), payload=st.lists(st.binary(max_size=50)).map(tuple),
    content_type=TEXT, created=FLOAT, expires=FLOAT, backend=TEXT, input_tokens=COUNT, output_tokens=COUNT,
    cost_dollars=FLOAT, upstream_s=FLOAT, tags=st.lists(TEXT).map(tuple), imported=FLOAT,
    askers=st.lists(TEXT).map(tuple), subjects=st.lists(TEXT).map(tuple),
)  # fmt: skip


@given(ENTRIES)
def test_what_is_encoded_is_decoded_to_the_same(entry: Entry) -> None:
    assert decode(encode(entry)) == entry
    whole = replace(entry, streamed=False, payload=(b"{}",))
    assert decode(encode(whole)) == whole


@given(st.binary(max_size=200))
def test_garbage_is_no_record(data: bytes) -> None:
    with pytest.raises(RecordInvalid):
        decode(data)


@given(st.integers(0, 5000), st.integers(1, 255))
def test_a_record_with_another_byte_is_refused(position: int, flipped: int) -> None:
    data = bytearray(encode(entry_of()))
    data[position % len(data)] ^= flipped
    with pytest.raises(RecordInvalid):
        decode(bytes(data))


@pytest.mark.parametrize("cut", range(1, 200, 13))
def test_a_truncated_record_is_refused(cut: int) -> None:
    with pytest.raises(RecordInvalid):
        decode(encode(entry_of())[:-cut])


def packed(values: object) -> bytes:
    """Return values as a record whose checksum fits."""
    data = msgpack.packb(values)
    return struct.pack(">BI", VERSION, crc32(data)) + data


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(RecordInvalid, match="version"):
        decode(msgpack.packb((2, *astuple(entry_of()))))
    with pytest.raises(RecordInvalid, match="version"):
        decode(bytes([VERSION + 1]) + encode(entry_of())[1:])
    entry = entry_of()
    assert decode(packed(astuple(entry))) == entry


@pytest.mark.parametrize("change", [lambda values: values[:-1], lambda values: [*values, 1]], ids=["fewer", "more"])
def test_a_record_with_other_fields_is_refused(change: object) -> None:
    with pytest.raises(RecordInvalid):
        decode(packed(change(list(astuple(entry_of())))))


@pytest.mark.parametrize("index", range(len(astuple(entry_of()))))
def test_a_field_of_the_wrong_type_is_refused(index: int) -> None:
    """It would otherwise fail far from here, with a request that could have been a miss."""
    values: list[object] = list(astuple(entry_of()))
    values[index] = {"x": 1}
    with pytest.raises(RecordInvalid):
        decode(packed(values))


@pytest.mark.parametrize("payload", [(), (b"a", b"b"), ("text",), (None,)])
def test_a_record_without_one_whole_body_is_refused(payload: tuple) -> None:
    with pytest.raises(RecordInvalid):
        decode(encode(entry_of(payload=payload, streamed=False)))


def test_a_pickle_is_not_executed() -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return pytest.fail, ("executed",)

    with pytest.raises(RecordInvalid):
        decode(pickle.dumps(Bomb()))


def test_an_asker_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(RecordInvalid, match="asker"):
        decode(packed([*astuple(entry_of())[:-2], (1,), ()]))
    with pytest.raises(RecordInvalid, match="subject"):
        decode(packed([*astuple(entry_of())[:-1], (1,)]))


def test_a_record_of_the_version_before_names_no_subject() -> None:
    entry = entry_of(askers=("a",))
    data = msgpack.packb(astuple(entry)[:-1])
    assert decode(struct.pack(">BI", NAMELESS, crc32(data)) + data) == entry


NAMES = [field.name for field in fields(Entry)]
HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
WORD = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
AMOUNT = st.floats(0, 1e9, allow_nan=False)
PORTABLE = st.builds(
    Entry,
    fingerprint=HEX, scope=HEX, tenant=TEXT, route=WORD, model=TEXT, operation=WORD, dialect=WORD,
    question=st.none() | TEXT, streamed=st.just(True), payload=st.lists(st.binary(max_size=50), min_size=1).map(tuple),
    content_type=WORD, created=AMOUNT, expires=AMOUNT.map(lambda s: 2e9 + s), backend=TEXT, input_tokens=COUNT,
    output_tokens=COUNT, cost_dollars=AMOUNT, upstream_s=AMOUNT, tags=st.lists(WORD, max_size=32).map(tuple),
    imported=AMOUNT, askers=st.lists(HEX.map("k{}".format), max_size=8).map(tuple),
    subjects=st.lists(HEX.map(lambda digits: "u" + digits[:32]), max_size=99).map(tuple),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_field_of_an_entry_is_missing_from_a_codec(name: str) -> None:
    """An entry that differs from another one in this field alone differs from it in both forms."""
    entry = entry_of(askers=("k" + "a" * 64,), subjects=("u" + "a" * 32,))
    value = getattr(entry, name)
    others: dict[type, object] = {
        str: hexed("other"), bool: True, int: 99, float: value + 1 if isinstance(value, float) else 0.0,
        tuple: (b"{}",) if name == "payload" else (),
    }  # fmt: skip
    other = replace(entry, **{name: others[type(value)]})
    assert other != entry
    assert decode(encode(other)) == other
    back = read_line(line_of(ImportedEntry(other, None, None), None, 0.0), time.time(), 10**6).entry
    assert replace(back, imported=other.imported) == other
    assert name == "imported" or getattr(back, name) == getattr(other, name)


@given(PORTABLE)
def test_a_line_of_an_export_holds_every_entry_of_a_store(entry: Entry) -> None:
    now = max(entry.created, entry.expires - 86_400.0)
    entry = replace(entry, created=entry.expires - 90_000.0)
    back = read_line(line_of(ImportedEntry(entry, None, None), None, now), now, 10**6).entry
    assert replace(back, imported=entry.imported) == entry
    assert back.imported == now, "a purge before the import does not cover it"


def test_a_line_of_the_version_before_names_no_subject() -> None:
    entry = entry_of()
    line = orjson.loads(line_of(ImportedEntry(entry, None, None), None, 0.0))
    del line["subjects"], line["imported"]
    back = read_line(orjson.dumps({**line, "version": 1}), time.time(), 10**6).entry
    assert replace(back, imported=0.0) == entry
