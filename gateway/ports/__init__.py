"""The Protocols that the steps depend on. Real adapters live in `gateway.adapters`; the contract suites under
`tests/contracts` run against every adapter and every shared fake."""

from __future__ import annotations

from gateway.ports.answering import (
    Backend,
    Batch,
    Crowd,
    Dialect,
    Duplex,
    Formed,
    Inspection,
    Outgoing,
    TextAnswer,
    Token,
)
from gateway.ports.hosting import Condition, HostedModels
from gateway.ports.inputs import BodySource, Clock, EagerEmbedder, Embedder, ImmediateEncoder, TextEncoder
from gateway.ports.stores import (
    Claim,
    CounterexampleStore,
    Foreign,
    LearningStore,
    Leases,
    MigrationStore,
    NearStore,
    RemovalStore,
    ResponseStore,
    StoredVector,
    StoreStats,
    VectorIndex,
    WeighedStore,
    Weight,
)
from gateway.ports.translating import Translated, Translation
from gateway.ports.verifying import Acceptance, Candidate, Opinion, PriorBands, Verifier

__all__ = [
    "Acceptance",
    "Backend",
    "Batch",
    "BodySource",
    "Candidate",
    "Claim",
    "Clock",
    "Condition",
    "CounterexampleStore",
    "Crowd",
    "Dialect",
    "Duplex",
    "EagerEmbedder",
    "Embedder",
    "Foreign",
    "Formed",
    "HostedModels",
    "ImmediateEncoder",
    "Inspection",
    "LearningStore",
    "Leases",
    "MigrationStore",
    "NearStore",
    "Opinion",
    "Outgoing",
    "PriorBands",
    "RemovalStore",
    "ResponseStore",
    "StoreStats",
    "StoredVector",
    "TextAnswer",
    "TextEncoder",
    "Token",
    "Translated",
    "Translation",
    "VectorIndex",
    "Verifier",
    "WeighedStore",
    "Weight",
]
