"""Defines the records of requests, and the segments that contain them. Pure (docs/decisions/0021).

A segment is a sequence of frames, each `length, CRC-32, msgpack`: first a `SegmentHeading`, then batches of rows. A
truncated segment, as after kill -9 during a write, is readable up to its last whole frame.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy as np

from gateway.scores import RequestFacts

MAGIC, VERSION = "nearhit traffic", 1

SUFFIX = ".segment"

_FRAME = struct.Struct(">II")

MAX_FRAME = 2**30  # bytes; a greater length means damage

REQUEST, LABEL, COMPARISON = 0, 1, 2  # the first value of a row; readers skip others, of later versions

_ODD = "surrogatepass"  # for text that is not UTF-8: clients may send such headers


class SegmentInvalid(ValueError):
    """The bytes are not a segment of this version. The message continues a sentence that begins with the file name."""


class RecordedCandidate(NamedTuple):
    """A stored answer that a lookup judged."""

    entry: bytes  # digest of its fingerprint
    similarity: float
    created: float  # wall clock
    score: float | None  # the verifier's, or None if similarity alone decided
    probability: float
    veto: str | None
    doubt: str | None
    settled: bool  # no second opinion or comparison of parts was needed


class RecordedAnswer(NamedTuple):
    """A fresh answer, as it was inspected for the cache."""

    admission: str  # by the dialect, regardless of the policy
    input_tokens: int
    output_tokens: int
    dollars: float  # cost of all calls that were made for it
    size: int  # bytes
    seconds: float  # from before the backend call to the end of the answer


class RecordedHit(NamedTuple):
    """The stored answer that was served."""

    entry: bytes  # digest of its fingerprint
    age_s: float
    tokens: int
    output_tokens: int
    dollars: float
    seconds: float  # duration of the backend call that fetched it


class RecordedRequest(NamedTuple):
    """One request and its outcome."""

    at: float  # wall clock, when it arrived
    id: str
    policy: str  # hash
    route: str
    request: RequestFacts
    prompt: str | None  # None if the policy does not keep it, or there is no question
    vector: bytes | None  # float16, of the question, or None if it was not embedded
    readable: bool  # whether the vector covers the whole question
    status: int
    verdict: str
    reason: str | None
    backend: str | None
    tier: str | None
    complexity: float | None
    entry: bytes  # digest of the fingerprint that it is stored under, or b"" if not stored
    stored: bool
    answer: RecordedAnswer | None
    hit: RecordedHit | None
    shift: float  # of the score: what the route had learnt near the question
    threshold: float | None  # for the best neighbour
    similarity: float | None  # of the best neighbour
    considered: tuple[RecordedCandidate, ...]
    seconds: float  # from arrival to the end of the answer
    stages: dict[str, float]
    subjects: tuple[str, ...] = ()  # digests of those who asked (`gateway.subjects`); older rows have none


class RecordedLabel(NamedTuple):
    """A lookup with a label that tells whether the neighbour was right."""

    at: float
    route: str
    score: float
    probability: float
    label: str


class RecordedComparison(NamedTuple):
    """The answer of a backend, compared with another one's to the same request: an audit of a light answer, or a copy
    to a shadow. It has nothing of the request or its client."""

    at: float  # wall clock, of the comparison
    route: str
    model: str  # that the request names: prices may depend on it
    source: str  # audit | shadow
    complexity: float | None  # of the request, in [0, 1]
    reference: str  # the backend whose answer is the standard
    candidate: str  # the backend whose answer was compared with it
    label: str  # of `Label`, or `failed` if the candidate gave no answer
    reference_tokens: tuple[int, int]  # input and output; zeros: the answer does not tell
    candidate_tokens: tuple[int, int]


FAILED = "failed"

Row = RecordedRequest | RecordedLabel | RecordedComparison

_KINDS = {RecordedRequest: REQUEST, RecordedLabel: LABEL, RecordedComparison: COMPARISON}

_NESTED = [
    (RecordedRequest._fields.index(name), form)
    for name, form in (("request", RequestFacts), ("answer", RecordedAnswer), ("hit", RecordedHit))
]

_CONSIDERED = RecordedRequest._fields.index("considered")


@dataclass(frozen=True, slots=True)
class SegmentHeading:
    """The state that all rows of a segment depend on."""

    started: float  # wall clock
    embedder: str  # fingerprint
    dimension: int
    verifier: str  # basis
    floor: float  # similarity below which nothing was judged
    headers: tuple[str, ...]  # names that the policy matched on when the segment began
    controls: dict[str, bytes]  # by route: the learnt acceptance, without the memory of single questions
    escalations: dict[str, bytes]  # by route: the learnt choice of tiers
    basis: str  # of the complexity estimates


def encode_heading(heading: SegmentHeading) -> bytes:
    fields = [getattr(heading, name) for name in SegmentHeading.__slots__]
    return _frame([MAGIC, VERSION, fields])


def encode_batch(rows: Sequence[Row]) -> bytes:
    return _frame([(_KINDS[type(row)], *row) for row in rows])


def decode_heading(payload: bytes) -> SegmentHeading:
    """Return the heading. Raise `SegmentInvalid`."""
    fields = _unpacked(payload)
    if not isinstance(fields, tuple) or len(fields) < 2 or fields[0] != MAGIC:
        raise SegmentInvalid("is not a segment of a traffic log")
    if fields[1] != VERSION:
        raise SegmentInvalid(f"has version {fields[1]!r} of the traffic log format, expected {VERSION}")
    try:
        heading = SegmentHeading(*fields[2])
    except TypeError:
        raise SegmentInvalid("has a heading of an unexpected form") from None
    return heading


def decode_batch(payload: bytes) -> Iterator[Row]:
    """Yield the rows of a batch. Raise `SegmentInvalid`."""
    try:
        for kind, *values in _unpacked(payload):
            if kind == LABEL:
                yield RecordedLabel._make(values)
            elif kind == COMPARISON:
                yield RecordedComparison._make(values)
            elif kind == REQUEST:
                for index, form in _NESTED:
                    if values[index] is not None:
                        values[index] = form._make(values[index])
                if values[_CONSIDERED]:
                    values[_CONSIDERED] = tuple(map(RecordedCandidate._make, values[_CONSIDERED]))
                yield RecordedRequest(*values)
    except (TypeError, IndexError) as error:
        raise SegmentInvalid(f"has a row of an unexpected form ({error})") from None


def vector_of(data: bytes) -> np.ndarray:
    """Return a recorded vector: float32, of unit length up to the rounding of float16."""
    return np.frombuffer(data, "<f2").astype(np.float32)


def frames(data: bytes) -> Iterator[bytes | None]:
    """Yield the whole frames in order. Yield None last if the rest is cut off or damaged."""
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
    return frame_of(msgpack.packb(value, use_bin_type=True, unicode_errors=_ODD))


def frame_of(payload: bytes) -> bytes:
    """Return the payload of a heading or a batch as a frame."""
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _unpacked(payload: bytes) -> Any:
    try:
        return msgpack.unpackb(payload, use_list=False, raw=False, unicode_errors=_ODD)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise SegmentInvalid(f"cannot be read ({type(error).__name__})") from None
