"""The parts that store something of requests, and how the commands reach each of them.

A part is declared here, or by the feature that stores it (`Feature.stores`). The declaration has its keys in the store
and its files in the data folder. An object implements it (`StoredPart`). A command reports the parts that it does not
reach. A test asks a busy gateway for all its keys and files. Each belongs to a part, or to `UNRELATED` with the reason
why it has nothing of a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.cache.erasure import Erasable, ErasureTarget, ErasureTraces

REACHED = ""


class StoredCommand(StrEnum):
    """A command that is about stored data. The value is its name in `Reach`."""

    ERASE = "erase"
    PURGE = "purge"
    EXPORT = "export"
    EXPLAIN = "explain"
    SIMULATE = "simulate"


@dataclass(frozen=True, slots=True)
class Reach:
    """Whether each command reaches a part: `REACHED`, or the sentence why it does not. There are no defaults, so that a
    new part says it for each."""

    erase: str
    purge: str
    export: str
    explain: str
    simulate: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part that stores something of requests. A report counts it under `name`, and describes it as `what`.

    `keys` are names in the store, without the prefix, as shell patterns. `files` are names in the data folder. With
    `counted`, an erasure counts the removals. With `own`, each gateway has its own part, and erases it after an erasure
    by another one.
    """

    name: str
    what: str
    keys: tuple[str, ...]
    files: tuple[str, ...]
    reach: Reach
    counted: bool
    own: bool


class StoredPart(Erasable, Protocol):
    """An object that implements a part."""

    @property
    def part(self) -> Part: ...


ENTRIES = Part(
    "entries",
    "stored answers",
    ("entry:*", "entries", "entries:*", "lease:*", "leases", "leases:*"),
    (),
    Reach(REACHED, REACHED, REACHED, REACHED, simulate="a simulation begins with empty caches"),
    counted=True,
    own=False,
)
TRAFFIC = Part(
    "traffic",
    "requests in the traffic log",
    (),
    ("traffic",),
    Reach(
        erase=REACHED,
        purge="they stay until traffic.max_age",
        export="copy the folder traffic",
        explain="no decision reads them",
        simulate=REACHED,
    ),
    counted=True,
    own=True,
)
LABELS = Part(
    "labels",
    "labels with their texts",
    (),
    ("labels",),
    Reach(
        erase=REACHED,
        purge="they stay for the time of their route's learn.keep",
        export="copy the folder labels",
        explain="no decision reads them",
        simulate="nearhit tune reads them",
    ),
    counted=True,
    own=True,
)
JOBS = Part(
    "jobs",
    "jobs and their results",
    ("jobs:*",),
    (),
    Reach(
        erase=REACHED,
        purge="they stay until jobs.result_ttl",
        export="jobs do not move",
        explain="no decision reads them",
        simulate="their requests count as recorded",
    ),
    counted=True,
    own=False,
)
FILES = Part(
    "files",
    "files and batches",
    ("files:*", "batches:*"),
    (),
    Reach(
        erase=REACHED,
        purge="they stay until jobs.file_ttl",
        export="their clients download them",
        explain="no decision reads them",
        simulate="their requests count as recorded",
    ),
    counted=True,
    own=False,
)
RELATIONS = Part(
    "relations",
    "links and counterexamples",
    ("links", "turns", "counterexamples"),
    (),
    Reach(
        erase=REACHED,
        purge=REACHED,  # they name entries, and find none that is gone
        export="links and counterexamples do not move",
        explain=REACHED,
        simulate="links and counterexamples are not replayed",
    ),
    counted=True,
    own=True,
)
LEARNED = Part(
    "learned",
    "learnt lookups and decoys",
    ("learning",),
    (),
    Reach(
        erase=REACHED,
        purge="lessons of removed answers stay: POST /admin/quality/reset forgets those of a route",
        export="learnt thresholds do not move",
        explain=REACHED,
        simulate=REACHED,
    ),
    counted=True,
    own=True,
)
INDEX = Part(
    "index",
    "checkpoints of the index",
    (),
    ("index",),
    Reach(
        erase=REACHED,
        purge="they are written again by index.checkpoint",
        export=REACHED,  # a line has the vector
        explain=REACHED,
        simulate="a simulation makes an index of its own",
    ),
    counted=False,
    own=True,
)
DISK = Part(
    "disk",
    "files of the store's server",
    (),
    ("store",),
    Reach(
        erase=REACHED,
        purge="they have removed text until the server writes them again",
        export=REACHED,  # they have nothing that the store does not have
        explain=REACHED,
        simulate=REACHED,
    ),
    counted=False,
    own=False,
)
MESSAGES = Part(
    "messages",
    "messages between gateways",
    ("changes", "spoken", "reply:*"),
    (),
    Reach(
        erase="they have embeddings, and no texts, until newer ones take their place",
        purge="they have embeddings, and no texts, until newer ones take their place",
        export="messages do not move",
        explain="no decision reads them",
        simulate="no decision reads them",
    ),
    counted=False,
    own=False,
)

PARTS: tuple[Part, ...] = (
    ENTRIES, TRAFFIC, LABELS, FILES, JOBS, RELATIONS, LEARNED, INDEX, DISK, MESSAGES,
)  # fmt: skip

UNRELATED: dict[str, str] = {
    "bans": "conditions of removals: names, digests, and the embedding of a text that an operator gave",
    "bans:*": "their version",
    "audit": "names of operators, digests and counts",
    "audit.jsonl*": "the same, of one gateway",
    "space": "names of embedders",
    "keys*": "hashes of API keys with their names",
    "key*": "the same",
    "quota:*": "counts for limits, which expire",
    "gateways": "names of gateways",
    "figures*": "metrics",
    "timeline:*": "metrics",
    "affinity:*": "digests of resources, and the name of the backend that made each",
    "policy": "the policy that an operator published",
    "policy:*": "its predecessors",
    "policy-history": "policies",
    "erasure.key": "a secret",
    "jobs.key": "a secret",
    "lock": "the process id of the gateway",
    "supervisor.json": "process ids",
    "served-models": "models",
    "verifier": "weights of nearhit tune",
    "workers": "the data folders of workers, each with the files of these parts",
    "*.sock": "a socket",
}
"""Names of keys and files, as shell patterns, with the reason why they have nothing of a request."""


class StoredParts:
    """The parts of one gateway, in the order of an erasure. The entries come before all of them, by a removal."""

    def __init__(self, *parts: StoredPart) -> None:
        """Raise `ValueError` if a part of the core is missing, or any comes twice."""
        names = [each.part.name for each in parts]
        if len(set(names)) < len(names) or not {part.name for part in PARTS if part is not ENTRIES} <= set(names):
            raise ValueError(f"expected one object for each stored part, got {', '.join(names)}")
        self._parts = parts

    def __iter__(self) -> Iterator[StoredPart]:
        return iter(self._parts)


def not_reached(command: StoredCommand, parts: Sequence[Part] = PARTS) -> list[str]:
    """Return a sentence for each part that a command does not reach."""
    reasons = ((part.what, getattr(part.reach, command)) for part in parts)
    return [f"not reached: {what} ({why})" for what, why in reasons if why]


class UnreachedPart:
    """A part that no erasure reaches. `exists` tells whether this gateway has it at all."""

    def __init__(self, part: Part, *, exists: bool) -> None:
        self.part = part
        self._exists = exists

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        if self._exists:
            traces.notes += not_reached(StoredCommand.ERASE, [self.part])
        return 0
