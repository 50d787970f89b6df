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
SHARED_TAGS = {"files": "batches", "gateways": "quota"}


@dataclass(frozen=True, slots=True)
class KeySpace:
    """`tags`: one a bucket; of one server none."""

    tags: tuple[str, ...] = ()

    def key(self, name: str) -> str:
        """Of what is there once, such as `bans:version`."""
        if not self.tags:
            return PREFIX + name
        subject = name.partition(":")[0]
        return f"{PREFIX}{{{SHARED_TAGS.get(subject, subject)}}}:{name}"

    def entry(self, fingerprint: str) -> str:
        return f"{self._prefix(fingerprint)}entry:{fingerprint}"

    def lease(self, fingerprint: str) -> str:
        return f"{self._prefix(fingerprint)}lease:{fingerprint}"

    def put_keys(self, fingerprint: str) -> tuple[str, str, str]:
        """Of the entry, of its lease and of the list of all: what a put touches."""
        part = self._prefix(fingerprint)
        return f"{part}entry:{fingerprint}", f"{part}lease:{fingerprint}", part + "entries"

    def counter(self, fingerprint: str) -> str:
        """Of leases."""
        return self._prefix(fingerprint) + "leases"

    def list_key(self, fingerprint: str) -> str:
        """That lists the entry, by its expiry."""
        return self._prefix(fingerprint) + "entries"

    @property
    def list_keys(self) -> Sequence[str]:
        return [f"{PREFIX}{{{tag}}}:entries" for tag in self.tags] or [PREFIX + "entries"]

    def group_by_list(self, fingerprints: Iterable[str]) -> dict[str, list[str]]:
        """Those of one list each, by its key: they may be touched in one step."""
        groups: dict[str, list[str]] = {}
        for fingerprint in fingerprints:
            groups.setdefault(self.list_key(fingerprint), []).append(fingerprint)
        return groups

    def _prefix(self, fingerprint: str) -> str:
        if not self.tags:
            return PREFIX
        return f"{PREFIX}{{{self.tags[key_slot(fingerprint.encode()) // WIDTH]}}}:"


def bucket_tags() -> tuple[str, ...]:
    """For each bucket the first number whose slot lies in the bucket's range: the same in every gateway."""
    tags_by_bucket: dict[int, str] = {}
    for number in count():
        tags_by_bucket.setdefault(key_slot(str(number).encode()) // WIDTH, str(number))
        if len(tags_by_bucket) == BUCKETS:
            return tuple(tags_by_bucket[bucket] for bucket in range(BUCKETS))
    raise AssertionError


ONE_SERVER = KeySpace()
CLUSTERED = KeySpace(bucket_tags())
