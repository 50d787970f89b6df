"""The names of the store's keys, and which keys share a node of a cluster.

On one server, with or without sentinels, names have no tag. In a cluster the part of a name in braces decides the slot.
Entries are spread over `BUCKETS` such tags, each with its own list and leases. Other keys that change in one step share
a tag (docs/decisions/0022).

The names of entries, their lists and their leases have the version of the record. So gateways of two versions on one
store have entries of their own, and neither takes those of the other for damaged ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from gateway.adapters.redis.records import VERSION

FORMER_VERSIONS = ("",)  # as in the names of entries; up to version 4 of the record, names had none

PREFIX = "nearhit:1:"
# A cluster of n nodes has 256/n buckets on each node, give or take one, if its slots are split into n ranges.
BUCKETS = 256
WIDTH = REDIS_CLUSTER_HASH_SLOTS // BUCKETS
# Keys that change together share a tag: files with the batches that read them, places with the gateways that hold them.
SHARED_TAGS = {"files": "batches", "gateways": "quota"}


@dataclass(frozen=True, slots=True)
class KeySpace:
    """A naming scheme of keys. `tags` has one per bucket, and none for a single server. `version` is that of the
    records, with a colon."""

    tags: tuple[str, ...] = ()
    version: str = f":{VERSION}"

    @property
    def former(self) -> tuple[KeySpace, ...]:
        """The names of entries in former versions."""
        return tuple(replace(self, version=version) for version in FORMER_VERSIONS)

    def key(self, name: str) -> str:
        """Return the name of a key that exists once, such as `bans:version`."""
        if not self.tags:
            return PREFIX + name
        subject = name.partition(":")[0]
        return f"{PREFIX}{{{SHARED_TAGS.get(subject, subject)}}}:{name}"

    def entry(self, fingerprint: str) -> str:
        return f"{self._prefix(fingerprint)}entry{self.version}:{fingerprint}"

    def lease(self, fingerprint: str) -> str:
        return f"{self._prefix(fingerprint)}lease{self.version}:{fingerprint}"

    def put_keys(self, fingerprint: str) -> tuple[str, str, str]:
        """Return the keys that a put uses: the entry, its lease, and the list of entries."""
        part, version = self._prefix(fingerprint), self.version
        return f"{part}entry{version}:{fingerprint}", f"{part}lease{version}:{fingerprint}", f"{part}entries{version}"

    def counter(self, fingerprint: str) -> str:
        """Return the key of the lease counter."""
        return f"{self._prefix(fingerprint)}leases{self.version}"

    def list_key(self, fingerprint: str) -> str:
        """Return the key of the list that has the entry, by its expiry."""
        return f"{self._prefix(fingerprint)}entries{self.version}"

    @property
    def list_keys(self) -> Sequence[str]:
        lists = [f"{PREFIX}{{{tag}}}:entries{self.version}" for tag in self.tags]
        return lists or [f"{PREFIX}entries{self.version}"]

    def group_by_list(self, fingerprints: Iterable[str]) -> dict[str, list[str]]:
        """Group fingerprints by the key of their list: those of one group may be used in one step."""
        groups: dict[str, list[str]] = {}
        for fingerprint in fingerprints:
            groups.setdefault(self.list_key(fingerprint), []).append(fingerprint)
        return groups

    def _prefix(self, fingerprint: str) -> str:
        if not self.tags:
            return PREFIX
        return f"{PREFIX}{{{self.tags[key_slot(fingerprint.encode()) // WIDTH]}}}:"


def bucket_tags() -> tuple[str, ...]:
    """Return for each bucket the first number whose slot is in the bucket's range; the same in every gateway."""
    tags_by_bucket: dict[int, str] = {}
    for number in count():
        tags_by_bucket.setdefault(key_slot(str(number).encode()) // WIDTH, str(number))
        if len(tags_by_bucket) == BUCKETS:
            return tuple(tags_by_bucket[bucket] for bucket in range(BUCKETS))
    raise AssertionError


ONE_SERVER = KeySpace()
CLUSTERED = KeySpace(bucket_tags())
