"""The port to where files and batches lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.jobs.batches import Batch, File


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a batch's requests, by line number."""

    jobs: dict[int, str]  # accepted ones
    done: frozenset[int]  # those whose line of output there is


class BatchStore(Protocol):
    """Every method raises `StoreUnavailable`. What a driver writes may be written twice: it comes out the same."""

    async def put_file(self, file: File, content: bytes) -> None: ...

    async def file(self, identity: str) -> File | None: ...

    async def content(self, identity: str) -> bytes | None: ...

    async def files(self, tenant: str) -> Sequence[File]:
        """The youngest first."""

    async def held(self) -> tuple[int, int]:
        """-> (files, bytes) of all tenants."""

    async def delete_file(self, identity: str, tenant: str) -> None: ...

    async def create(self, batch: Batch) -> None:
        """From now on it is driven, and its input file kept."""

    async def save(self, batch: Batch) -> None: ...

    async def batch(self, identity: str) -> Batch | None: ...

    async def batches(self, tenant: str) -> Sequence[str]:
        """The ids of those that there are, the youngest first."""

    async def counted(self, batch: str) -> tuple[int, int]:
        """-> (completed, failed) requests so far."""

    async def cancel(self, batch: str) -> None: ...

    async def cancelled(self, batch: str) -> bool: ...

    async def open(self) -> Sequence[str]:
        """Those to be driven."""

    async def lease(self, batch: str, driver: str, hold_s: float) -> bool:
        """Whether `driver` is to drive it, for so long again."""

    async def progress(self, batch: str) -> Progress: ...

    async def began(self, batch: str, line: int, job: str) -> None: ...

    async def ended(self, batch: str, line: int, output: bytes, *, completed: bool) -> None: ...

    async def outputs(self, batch: str, *, completed: bool) -> dict[int, bytes]: ...

    async def close(self, batch: Batch, keep_s: float) -> None:
        """It is over: driven no more, and its input file expires again."""
