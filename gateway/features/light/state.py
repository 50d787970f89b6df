"""The rollout of one route: the versions in force, and what has happened. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from gateway.upstream.model_versions import VersionSplit

MAX_EVENTS = 50  # of a rollout; the oldest go first
MAX_REPORT = 4_096  # bytes of the figures that the training hands over


class Change(StrEnum):
    """A change of a rollout: the label `change` of `nearhit_rollout_changes_total`."""

    STARTED = "started"
    ADVANCED = "advanced"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled-back"
    WITHDRAWN = "withdrawn"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """One change. `at` is in seconds since the epoch, by the clock of the gateway that made it."""

    at: float
    change: Change
    version: str
    why: str
    by: str  # an operator, `the gateway`, or `nearhit light`


@dataclass(frozen=True, slots=True)
class Rollout:
    """The versions of a route's light model.

    A `candidate` gets the share of its `step`. Without one, the `stable` version has all calls and is compared with the
    `previous` one. With neither, the large model answers. `epoch` numbers what the evidence is about, and `looks` the
    looks at it so far. `first_epoch` is the one in which `model` has no rollout yet.
    """

    revision: int = 0
    model: str = ""  # whose versions these are, as the server names it
    first_epoch: int = 0
    stable: str | None = None
    previous: str | None = None
    candidate: str | None = None
    step: int = 0
    epoch: int = 0
    looks: int = 0
    since: float = 0.0  # of the step, wall clock; for display alone
    report: Mapping[str, Any] = field(default_factory=dict)  # figures of the newest training
    events: Sequence[RolloutEvent] = ()

    @property
    def subject(self) -> str | None:
        """The version that is judged."""
        return self.candidate or self.stable

    @property
    def reference(self) -> str | None:
        """The version that it is compared with, or None if there is none."""
        return self.stable if self.candidate is not None else self.previous

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that the model servers have to serve."""
        return tuple(dict.fromkeys(each for each in (self.stable, self.candidate, self.previous) if each is not None))

    @property
    def has_begun(self) -> bool:
        """Whether a version of the model was rolled out."""
        return self.epoch != self.first_epoch

    def split(self, steps: Sequence[float]) -> VersionSplit | None:
        """Return the shares of the calls, or None if no version was rolled out yet: the server then chooses."""
        if not self.has_begun:
            return None
        if self.candidate is None:
            return VersionSplit(self.stable)
        return VersionSplit(self.stable, self.candidate, self.share(steps))

    def share(self, steps: Sequence[float]) -> float:
        """Return the share of the candidate. A policy may have fewer steps than before."""
        return steps[min(self.step, len(steps) - 1)]

    def of_model(self, model: str) -> Rollout:
        """Return the rollout for the model that the route has now. Versions of another model are forgotten."""
        if self.model in (model, ""):
            return replace(self, model=model)
        none = self.withdraw()
        return replace(none, model=model, first_epoch=none.epoch, report={})

    def adopt(self, version: str | None) -> Rollout:
        """Return the rollout with the version that the server has served so far, before the first rollout."""
        return replace(self, stable=version)

    def begin(self, version: str, report: Mapping[str, Any]) -> Rollout:
        """Return the rollout with a new candidate. It takes the place of an earlier one that is still judged, and
        begins at the first step."""
        return replace(self, candidate=version, step=0, report=report, **self._anew)

    def advance(self) -> Rollout:
        """Return the rollout at the next step."""
        return replace(self, step=self.step + 1, **self._anew)

    def promote(self) -> Rollout:
        """Return the rollout with the candidate as the stable version, which stays compared with the one before."""
        return replace(self, stable=self.candidate, previous=self.stable, candidate=None, step=0, **self._anew)

    def roll_back(self) -> Rollout:
        """Return the rollout without its candidate, or with the previous version as the stable one."""
        if self.candidate is not None:
            return replace(self, candidate=None, step=0, **self._anew)
        return replace(self, stable=self.previous, previous=None, **self._anew)

    def withdraw(self) -> Rollout:
        """Return the rollout without any version: the large model answers."""
        return replace(self, stable=None, previous=None, candidate=None, step=0, **self._anew)

    def look(self, *, anew: bool) -> Rollout:
        """Return the rollout after a look at its evidence. With `anew` the next evidence begins."""
        return replace(self, **self._anew) if anew else replace(self, looks=self.looks + 1)

    def record(self, event: RolloutEvent) -> Rollout:
        """Return the rollout with one more event, from whose time its step counts."""
        return replace(self, since=event.at, events=(*self.events, event)[-MAX_EVENTS:])

    @property
    def _anew(self) -> dict[str, Any]:
        return {"epoch": self.epoch + 1, "looks": 0}

    def packed(self) -> bytes:
        return orjson.dumps(asdict(self))

    @staticmethod
    def of(data: bytes | None) -> Rollout:
        """Return the rollout of a record of the store. One that cannot be read is as good as none."""
        if data is None:
            return Rollout()
        try:
            fields = orjson.loads(data)
            events = tuple(RolloutEvent(**each | {"change": Change(each["change"])}) for each in fields.pop("events"))
            return Rollout(**fields, events=events)
        except (orjson.JSONDecodeError, TypeError, ValueError, KeyError, AttributeError):
            return Rollout()
