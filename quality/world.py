"""Prepares the inputs of a replay once per stream: vectors, neighbours, and the verifier's opinions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.ledger import BANDS
from gateway.cache.verifiers import FEW_ENTRIES
from gateway.outcomes import Refusal
from gateway.ports import Opinion, StoredCandidate, TextEncoder, Verifier
from quality.decision import StoredQuestion
from quality.streams import Stream

BLOCK = 1000  # rows of the matrix of similarities at a time
LOWEST_SIMILARITY = 0.5  # below it no verifier reads a neighbour
Row = tuple[Any, ...]
"""The fields of an opinion, as msgpack has them."""
FIELDS = tuple(each.name for each in fields(Opinion) if each.name != "estimate")  # `estimate` is the last one
GATEWAY = Path(__file__).parents[1] / "gateway"


class SimilarityVerifier:
    """A verifier that gives the similarity and nothing else, for comparison with others."""

    basis = "similarity"
    floor = 0.6
    prior = ((0.0, 0.0),) * BANDS

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        return [Opinion(candidate.similarity, candidate.similarity) for candidate in candidates]

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        return None

    def features(self, question: str, candidate: StoredCandidate) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        return


def verifier_key(verifier: Verifier, encoder: str) -> str:
    """Return a name of the verifier, its code, its weights and its encoder. Other opinions are not used again."""
    cache = GATEWAY / "cache"
    sources = [*cache.glob("*.py"), *cache.glob("features/*.py"), *cache.glob("weights/*")]
    sources += GATEWAY.glob("adapters/onnx/cross*.py")
    digest = hashlib.sha256(f"{verifier.basis}\0{encoder}".encode())
    for path in sorted(sources):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return f"{verifier.basis}-{digest.hexdigest()[:12]}".replace("/", "-")


class Opinions:
    """A verifier that is asked once for each pair, over all runs with the same weights. Implements `Verifier`."""

    def __init__(self, verifier: Verifier, folder: Path | None, encoder: str = "") -> None:
        self.basis, self.prior, self.floor = verifier.basis, verifier.prior, verifier.floor
        self.asked = 0  # pairs that were not known yet
        self._path = folder / f"opinions-{verifier_key(verifier, encoder)}.msgpack" if folder is not None else None
        self._verifier = verifier
        self._first: dict[bytes, Row] = {}
        self._second: dict[bytes, Row | None] = {}
        if self._path is not None and self._path.exists():
            self._first, self._second = msgpack.unpackb(self._path.read_bytes(), use_list=False, strict_map_key=False)

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        keys = [_key(question, candidate) for candidate in candidates]
        new = [candidate for key, candidate in zip(keys, candidates, strict=True) if key not in self._first]
        if new:
            self.asked += len(new)
            said = self._verifier.opinions(question, new)
            for candidate, opinion in zip(new, said, strict=True):
                self._first[_key(question, candidate)] = _row(opinion)
        return [_opinion(self._first[key]) for key in keys]

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        key = _key(question, candidate)
        if key not in self._second:
            said = await self._verifier.second_opinion(question, candidate, first)
            self._second[key] = None if said is None else _row(said)
        row = self._second[key]
        return None if row is None else _opinion(row)

    def features(self, question: str, candidate: StoredCandidate) -> Mapping[str, float]:
        return self._verifier.features(question, candidate)

    def close(self) -> None:
        self.save()

    def save(self) -> None:
        if self._path is not None and self.asked:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(msgpack.packb((self._first, self._second)))
            self.asked = 0


def _key(question: str, candidate: StoredCandidate) -> bytes:
    entries = candidate.entries if candidate.entries <= FEW_ENTRIES else 0  # the same opinion on all larger ones
    both = f"{question}\0{candidate.question}\0{entries}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(both, digest_size=12).digest()


def _row(opinion: Opinion) -> Row:
    """Return the fields in their order. `estimate` is a row, too."""
    estimate = None if opinion.estimate is None else _row(opinion.estimate)
    return (*(getattr(opinion, name) for name in FIELDS), estimate)


def _opinion(row: Row) -> Opinion:
    found = Opinion(*row[:-1])
    found.veto, found.doubt = (Refusal(each) if each else None for each in (found.veto, found.doubt))
    found.estimate = None if row[-1] is None else _opinion(row[-1])
    return found


class World:
    """A stream with its vectors; `near[i]` holds whom request i could be served from, most similar first."""

    def __init__(self, stream: Stream, vectors: NDArray[np.float32]) -> None:
        self.stream = stream
        self.vectors = [row for row in vectors]  # noqa: C416 (rows that keep their identity)
        self.stored = [StoredQuestion(str(number), text) for number, text in enumerate(stream.questions)]
        self.near: list[NDArray[np.int32]] = []
        self.similarities: list[NDArray[np.float32]] = []
        for start in range(0, stream.request_count, BLOCK):
            block = vectors[start : min(start + BLOCK, stream.request_count)] @ vectors.T
            for at, row in enumerate(block):
                row[start + at] = -1.0  # not itself
                found = np.flatnonzero(row >= LOWEST_SIMILARITY)
                found = found[np.argsort(-row[found], kind="stable")]
                self.near.append(found.astype(np.int32))
                self.similarities.append(np.minimum(row[found], 1.0))


def world_of(stream: Stream, encoder: TextEncoder, folder: Path | None) -> World:
    """Return the world of a stream. It reads the vectors of an earlier run with the same texts and the same model."""
    named = "\0".join((encoder.fingerprint, *stream.questions)).encode("utf-8", "surrogatepass")
    path = folder / f"vectors-{hashlib.sha256(named).hexdigest()[:16]}.npy" if folder is not None else None
    if path is not None and path.exists():
        return World(stream, np.load(path, allow_pickle=False))
    vectors = np.stack([encoder.encode([question])[0].vector for question in stream.questions])
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, vectors, allow_pickle=False)
    return World(stream, vectors)
