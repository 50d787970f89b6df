"""The demand on a fleet, with the checks of its ranges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Embedder = Literal["onnx", "triton"]
Index = Literal["auto", "faiss", "milvus"]


class DemandImpossible(Exception):
    """No fleet can meet the demand. The message is one sentence: the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The load on all gateways together. Rates are per second, shares are in [0, 1], sizes are in bytes.

    Raises `DemandImpossible` if a value is out of range.
    """

    rps: float  # requests per second, mean over a month
    hit_rate: float  # share of all requests
    entries: float  # stored at once
    semantic_share: float = 0.5  # share of the hits
    stored_share: float = 1.0  # share of the misses
    stream_share: float = 0.5  # share of the misses
    stream_events: float = 100.0  # events in one stream
    large_share: float = 0.3  # share of the misses
    peak_to_mean: float = 2.0
    utilisation: float = 0.6  # target for each core, GPU and node, at the peak
    spare: int = 1  # extra units of each part that can fail
    store_replicas: int = 1  # replicas of each shard, besides its master
    request_bytes: float = 1000.0
    answer_bytes: float = 2000.0
    embedder: Embedder = "onnx"
    index: Index = "auto"
    own_models: bool = True  # the plan counts their GPUs; False: a provider runs the models

    def __post_init__(self) -> None:
        for sentence in self._range_errors():
            raise DemandImpossible(sentence)

    def _range_errors(self) -> Iterator[str]:
        for name, value, least, most in (
            ("--rps", self.rps, 0.001, 1e9),
            ("--entries", self.entries, 0.0, 1e12),
            ("--peak-to-mean", self.peak_to_mean, 1.0, 1000.0),
            ("--stream-events", self.stream_events, 0.0, 1e6),
            ("--request-bytes", self.request_bytes, 0.0, 1e8),
            ("--answer-bytes", self.answer_bytes, 1.0, 1e8),
            ("--spare", self.spare, 0, 1000),
            ("--store-replicas", self.store_replicas, 0, 5),
        ):
            if not (math.isfinite(value) and least <= value <= most):
                yield f"{name} is {value:g}, expected {least:g} to {most:g}"
        for name, value in (
            ("--hit-rate", self.hit_rate),
            ("--semantic-share", self.semantic_share),
            ("--stored-share", self.stored_share),
            ("--stream-share", self.stream_share),
            ("--large-share", self.large_share),
        ):
            if not 0 <= value <= 1:
                yield f"{name} is {value:g}, expected a share of 0 to 1 or 0% to 100%"
        if not 0.05 <= self.utilisation <= 0.95:
            yield f"--utilisation is {self.utilisation:g}, expected 0.05 to 0.95: the queue of a full server only grows"
        if self.hit_rate > 0 and self.entries < 1:
            yield (f"--hit-rate {self.hit_rate:g} of --entries {self.entries:g} fails: hits come from stored entries")
        if self.entries >= 1 and self.inserts == 0 and self.hit_rate < 1:
            yield f"--entries {self.entries:g} with --stored-share 0 fails: nothing would ever store them"

    @property
    def peak(self) -> float:
        return self.rps * self.peak_to_mean

    @property
    def exact(self) -> float:
        """The share of exact hits among all requests."""
        return self.hit_rate * (1 - self.semantic_share)

    @property
    def semantic(self) -> float:
        return self.hit_rate * self.semantic_share

    @property
    def miss(self) -> float:
        return 1 - self.hit_rate

    @property
    def inserts(self) -> float:
        """The mean number of entries that a request stores."""
        return self.miss * self.stored_share

    @property
    def embeddings(self) -> float:
        """The mean number of texts that a request embeds: one for each request that is not an exact hit."""
        return self.semantic + self.miss
