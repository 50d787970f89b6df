"""The versions of a model at one upstream, and the share of the calls that each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class VersionSplit:
    """The versions that answer the calls of clients. `share` is that of the candidate, in [0, 1]. Without a `stable`
    version the backend leaves the other calls to the next backend."""

    stable: str | None
    candidate: str | None = None
    share: float = 0.0

    def choose(self, draw: float) -> str | None:
        """Return the version of a call, or None if no version takes it. `draw` is in [0, 1)."""
        return self.candidate if self.candidate is not None and draw < self.share else self.stable


OnVersionCall = Callable[[str, bool], None]
"""Is told of each call of a client that a version has ended: the version, and whether it answered."""


class ModelVersions(Protocol):
    """The versions of the model of a backend, at one of its addresses."""

    @property
    def model(self) -> str:
        """The name of the model on the server."""

    def follow(self, split: VersionSplit | None, on_call: OnVersionCall) -> None:
        """Send calls to these versions from now on. With None the server chooses, and nothing is told."""

    async def current(self) -> str | None:
        """Return the newest version that the server serves, or None if it serves none. Raise `BackendError`."""

    async def require(self, versions: Sequence[str]) -> None:
        """Have the server serve these versions and no others. Return at once if it serves them already. Raise
        `BackendError` if it does not serve each of them afterwards."""

    async def answer(self, version: str, text: str) -> str:
        """Return what a version answers to a text. Raise `BackendError`."""
