"""Where keys are kept, for all gateways that share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Outdated(Exception):
    """Something else lies there by now."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """`new` is to lie where `old` does; None: nothing. `digests` lead to it, `gone` no longer do."""

    id: str
    old: bytes | None
    new: bytes | None
    digests: Sequence[str]
    gone: Sequence[str]


class KeyStore(Protocol):
    """Every method raises `StoreUnavailable`. Records are those of `gateway.access.model`."""

    async def version(self) -> bytes:
        """Another one after every change; cheap."""

    async def by_digest(self, digest: str) -> bytes | None: ...

    async def by_id(self, identity: str) -> bytes | None: ...

    async def listed(self) -> Sequence[bytes]: ...

    async def swap(self, change: KeyChange, *, synced: bool = False) -> bool:
        """Whether it is known to have reached the disk, which is waited for only where `synced`. Raises `Outdated`."""
