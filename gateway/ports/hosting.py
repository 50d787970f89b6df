"""Models that an upstream hosts, where it says how they are and lets them be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol


class Condition(StrEnum):
    """Of a model at an upstream, as far as calls and probes have told."""

    READY = "ready"
    DEAD = "dead"  # its process has died; the server still says that it is ready
    ABSENT = "absent"  # the server does not have it, or has it not loaded


class HostedModels(Protocol):
    """The models of one upstream."""

    @property
    def server(self) -> str:
        """Its address: what is the same for all backends that use it."""

    @property
    def conditions(self) -> Mapping[str, Condition]:
        """By the model's name."""

    async def wrong(self) -> None:
        """Returns while a model is not ready."""

    def told(self, name: str, condition: Condition) -> None:
        """What a probe has told."""

    async def loaded(self, name: str) -> bool:
        """What the server says; never raises."""

    async def answers(self, name: str) -> bool:
        """What one short call says, and `conditions` by it; never raises."""

    async def reload(self, name: str) -> None:
        """Unloads it and loads it. Raises `LoadRefused` where the server allows neither, `BackendError` where it cannot
        be loaded; it is absent then."""
