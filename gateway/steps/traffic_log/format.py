"""What is kept of a request, and the segments that it is kept in. Pure (docs/decisions/0021).

A segment is a row of frames, each `length, CRC-32, msgpack`: first a `SegmentHeading`, then batches of rows. One that
was cut off, as by kill -9 in the middle of a write, is good up to its last whole frame.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from gateway.messages import RequestFacts

MAGIC, VERSION = "nearhit traffic", 1

SUFFIX = ".segment"

_FRAME = struct.Struct(">II")

MAX_FRAME = 2**30  # a length beyond this is no length

REQUEST, LABEL = 0, 1  # the first value of a row

_ODD = "surrogatepass"  # of text that is no UTF-8: headers are what clients send


class SegmentInvalid(ValueError):
    """The bytes are no segment of this version; the message is the end of a sentence that names the file."""


class RecordedCandidate(NamedTuple):
    """A stored answer that a lookup judged."""

    entry: bytes  # digest of its fingerprint
    similarity: float
    created: float  # wall clock
    score: float | None  # the verifier's; None: similarity alone decided
    probability: float
    veto: str | None
    doubt: str | None
    settled: bool  # False: the gateway would have looked closer, had it been the best


class RecordedAnswer(NamedTuple):
    """A fresh answer, as it was inspected for the cache."""

    admission: str  # what the dialect said of it, whatever the policy
    input_tokens: int
    output_tokens: int
    dollars: float  # of all calls that were made for it
    size: int  # bytes
    seconds: float  # from before the backend was asked to its end


class RecordedHit(NamedTuple):
    """The stored answer that was served."""

    entry: bytes  # digest of its fingerprint
    age_s: float
    tokens: int
    output_tokens: int
    dollars: float
    seconds: float  # that it took to come when it was fetched


class RecordedRequest(NamedTuple):
    """One request and what became of it."""

    at: float  # wall clock, when it came
    id: str
    policy: str  # hash
    route: str
    given: RequestFacts
    prompt: str | None  # None: not to be kept, or no question
    vector: bytes | None  # float16, of the question; None: it was not embedded
    readable: bool  # whether the vector stands for the whole question
    status: int
    verdict: str
    reason: str | None
    backend: str | None
    tier: str | None
    complexity: float | None
    entry: bytes  # digest of its fingerprint: what it is stored under; empty: of none
    stored: bool
    answer: RecordedAnswer | None
    hit: RecordedHit | None
    shift: float  # what the route had learnt near the question
    threshold: float | None  # that the best neighbour was held against
    similarity: float | None  # of the best neighbour
    considered: tuple[RecordedCandidate, ...]
    seconds: float  # to the end of its answer
    stages: dict[str, float]


class RecordedLabel(NamedTuple):
    """A lookup of which it turned out whether the neighbour was right."""

    at: float
    route: str
    score: float
    probability: float
    label: str


Row = RecordedRequest | RecordedLabel

_NESTED = [
    (RecordedRequest._fields.index(name), form)
    for name, form in (("given", RequestFacts), ("answer", RecordedAnswer), ("hit", RecordedHit))
]

_CONSIDERED = RecordedRequest._fields.index("considered")


@dataclass(frozen=True, slots=True)
class SegmentHeading:
    """What all rows of a segment stand on."""

    started: float  # wall clock
    embedder: str  # fingerprint
    dimension: int
    verifier: str  # basis
    floor: float  # similarity below which nothing was judged
    headers: tuple[str, ...]  # names that the policy matched by when the segment was begun
    controls: dict[str, bytes]  # by route: what its acceptance has learnt, but for what lies near single questions
    escalations: dict[str, bytes]  # by route
    basis: str  # of complexities


def encode_heading(heading: SegmentHeading) -> bytes:
    fields = [getattr(heading, name) for name in SegmentHeading.__slots__]
    return _frame([MAGIC, VERSION, fields])


def encode_batch(rows: Sequence[Row]) -> bytes:
    return _frame([(REQUEST if isinstance(row, RecordedRequest) else LABEL, *row) for row in rows])


def decode_heading(payload: bytes) -> SegmentHeading:
    """Raises `SegmentInvalid`."""
    fields = _unpacked(payload)
    if not isinstance(fields, tuple) or len(fields) < 2 or fields[0] != MAGIC:
        raise SegmentInvalid("is no segment of a traffic log")
    if fields[1] != VERSION:
        raise SegmentInvalid(f"is of version {fields[1]!r} of the traffic log, expected {VERSION}")
    try:
        heading = SegmentHeading(*fields[2])
    except TypeError:
        raise SegmentInvalid("has a heading of another form") from None
    return heading


def decode_batch(payload: bytes) -> Iterator[Row]:
    """Raises `SegmentInvalid`."""
    try:
        for kind, *values in _unpacked(payload):
            if kind == LABEL:
                yield RecordedLabel._make(values)
            else:
                for index, form in _NESTED:
                    if values[index] is not None:
                        values[index] = form._make(values[index])
                if values[_CONSIDERED]:
                    values[_CONSIDERED] = tuple(map(RecordedCandidate._make, values[_CONSIDERED]))
                yield RecordedRequest._make(values)
    except (TypeError, IndexError) as error:
        raise SegmentInvalid(f"has a row of another form ({error})") from None


def frames(data: bytes) -> Iterator[bytes | None]:
    """The whole frames in order; None, as the last one, where what follows is cut off or damaged."""
    at = 0
    while at < len(data):
        head = data[at : at + _FRAME.size]
        if len(head) < _FRAME.size:
            yield None
            return
        length, checksum = _FRAME.unpack(head)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        if length > MAX_FRAME or len(payload) < length or zlib.crc32(payload) != checksum:
            yield None
            return
        yield payload
        at += _FRAME.size + length


def _frame(value: Any) -> bytes:
    payload: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors=_ODD)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _unpacked(payload: bytes) -> Any:
    try:
        return msgpack.unpackb(payload, use_list=False, raw=False, unicode_errors=_ODD)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise SegmentInvalid(f"cannot be read ({type(error).__name__})") from None
