"""Entries as they lie in the store."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import astuple, replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.adapters.redis.store import VERSION, WITHOUT_ASKERS, RecordInvalid, decode, encode
from gateway.messages import Entry
from tests.fixtures.entries import entry_of

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
FLOAT = st.floats(allow_nan=False)
COUNT = st.integers(0, 2**40)
ENTRIES = st.builds(
    Entry,
    fingerprint=TEXT, scope=TEXT, tenant=TEXT, route=TEXT, model=TEXT, operation=TEXT, dialect=TEXT,
    question=st.none() | TEXT, streamed=st.just(True), payload=st.lists(st.binary(max_size=50)).map(tuple),
    content_type=TEXT, created=FLOAT, expires=FLOAT, backend=TEXT, input_tokens=COUNT, output_tokens=COUNT,
    cost_dollars=FLOAT, upstream_s=FLOAT, tags=st.lists(TEXT).map(tuple), imported=FLOAT,
    askers=st.lists(TEXT).map(tuple),
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


@given(st.integers(0, 5000), st.integers(0, 255))
def test_a_damaged_record_is_refused_or_read_but_never_something_else(position: int, value: int) -> None:
    """One byte changed: either it is noticed, or what comes out is an entry all the same."""
    data = bytearray(encode(entry_of()))
    data[position % len(data)] = value
    with contextlib.suppress(RecordInvalid):
        assert isinstance(decode(bytes(data)), Entry)


@pytest.mark.parametrize("cut", range(1, 200, 13))
def test_a_truncated_record_is_refused(cut: int) -> None:
    with pytest.raises(RecordInvalid):
        decode(encode(entry_of())[:-cut])


@pytest.mark.parametrize("version", [0, 1, "2", None])
def test_a_record_of_another_version_is_refused(version: object) -> None:
    with pytest.raises(RecordInvalid, match="version"):
        decode(msgpack.packb((version, *astuple(entry_of()))))


@pytest.mark.parametrize("change", [lambda values: values[:-1], lambda values: [*values, 1]], ids=["fewer", "more"])
def test_a_record_with_other_fields_is_refused(change: object) -> None:
    with pytest.raises(RecordInvalid):
        decode(msgpack.packb((VERSION, *change(astuple(entry_of())))))


@pytest.mark.parametrize("index", range(len(astuple(entry_of()))))
def test_a_field_of_the_wrong_type_is_refused(index: int) -> None:
    """It would otherwise fail far from here, with a request that could have been a miss."""
    values: list[object] = list(astuple(entry_of()))
    values[index] = {"x": 1}
    with pytest.raises(RecordInvalid):
        decode(msgpack.packb((VERSION, *values)))


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


def test_a_record_of_the_version_without_askers_is_read() -> None:
    entry = entry_of()
    written = msgpack.packb((WITHOUT_ASKERS, *astuple(entry)[:-1]))
    assert decode(written) == entry


def test_only_an_entry_with_askers_has_the_new_version() -> None:
    """A gateway of an earlier version would serve it to everybody, so it must not be able to read it."""
    entry = entry_of()
    assert msgpack.unpackb(encode(entry))[0] == WITHOUT_ASKERS
    assert msgpack.unpackb(encode(replace(entry, askers=("k",))))[0] == VERSION


def test_an_asker_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(RecordInvalid, match="asker"):
        decode(msgpack.packb((VERSION, *astuple(entry_of())[:-1], (1,))))
