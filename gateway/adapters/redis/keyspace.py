"""How the store's keys are called, and which of them lie on one node of a cluster.

On one server, with sentinels or without, names are as they always were. In a cluster a key's slot is that of the part
of its name in braces: entries are spread over `BUCKETS` such tags, each with a list and leases of its own, and what
else is changed in one step has a tag each (docs/decisions/0027).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

PREFIX = "nearhit:1:"
# A cluster of n nodes has 256/n of them on each, within one, where its slots are dealt out in n ranges.
BUCKETS = 256
WIDTH = REDIS_CLUSTER_HASH_SLOTS // BUCKETS
# What is changed together lies together: files with the batches that read them, places with who holds them.
TOGETHER = {"files": "batches", "gateways": "quota"}


@dataclass(frozen=True, slots=True)
class KeySpace:
    """`tags`: one a bucket; of one server none."""

    tags: tuple[str, ...] = ()

    def key(self, name: str) -> str:
        """Of what is there once, such as `bans:version`."""
        if not self.tags:
            return PREFIX + name
        subject = name.partition(":")[0]
        return f"{PREFIX}{{{TOGETHER.get(subject, subject)}}}:{name}"

    def entry(self, fingerprint: str) -> str:
        return f"{self._part(fingerprint)}entry:{fingerprint}"

    def lease(self, fingerprint: str) -> str:
        return f"{self._part(fingerprint)}lease:{fingerprint}"

    def of_put(self, fingerprint: str) -> tuple[str, str, str]:
        """Of the entry, of its lease and of the list of all: what a put touches."""
        part = self._part(fingerprint)
        return f"{part}entry:{fingerprint}", f"{part}lease:{fingerprint}", part + "entries"

    def counter(self, fingerprint: str) -> str:
        """Of leases."""
        return self._part(fingerprint) + "leases"

    def list_of(self, fingerprint: str) -> str:
        """That lists the entry, by its expiry."""
        return self._part(fingerprint) + "entries"

    @property
    def lists(self) -> Sequence[str]:
        return [f"{PREFIX}{{{tag}}}:entries" for tag in self.tags] or [PREFIX + "entries"]

    def grouped(self, fingerprints: Iterable[str]) -> dict[str, list[str]]:
        """Those of one list each, by its key: they may be touched in one step."""
        groups: dict[str, list[str]] = {}
        for fingerprint in fingerprints:
            groups.setdefault(self.list_of(fingerprint), []).append(fingerprint)
        return groups

    def _part(self, fingerprint: str) -> str:
        if not self.tags:
            return PREFIX
        return f"{PREFIX}{{{self.tags[key_slot(fingerprint.encode()) // WIDTH]}}}:"


def spread() -> tuple[str, ...]:
    """For each bucket the first number whose slot lies in the bucket's range: the same in every gateway."""
    found: dict[int, str] = {}
    for number in count():
        found.setdefault(key_slot(str(number).encode()) // WIDTH, str(number))
        if len(found) == BUCKETS:
            return tuple(found[bucket] for bucket in range(BUCKETS))
    raise AssertionError


ONE_SERVER = KeySpace()
CLUSTERED = KeySpace(spread())
