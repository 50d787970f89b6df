"""Extensions: features, dialects, backends, indexes and commands by name, of this wheel and of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from gateway.errors import StartupError


@dataclass(frozen=True, slots=True)
class Extensions:
    """The extensions of one kind. Nothing is imported until `load` is called for its name.

    `group` is the group of entry points in which other packages declare theirs, such as `nearhit.features`. `own` has
    those of this wheel, as `module:attribute` by name. A name of this wheel cannot be taken by another package.
    """

    group: str
    own: Mapping[str, str]

    def load(self, name: str) -> Any:
        """Import and return the extension, or None if there is none of this name. Raise `StartupError` if it is
        broken."""
        value = self.own.get(name)
        if value is not None:
            return EntryPoint(name, value, self.group).load()
        for point in _declared(self.group, tuple(sys.path)).select(name=name):
            try:
                return point.load()
            except Exception as error:  # the code of others
                package = "an installed package" if point.dist is None else point.dist.name
                raise StartupError(
                    f"{self.group}: {name} of {package} cannot be loaded from {point.value}: {error}"
                ) from error
        return None

    def names(self) -> tuple[str, ...]:
        """Return all names, those of this wheel first."""
        others = sorted(_declared(self.group, tuple(sys.path)).names - self.own.keys())
        return (*self.own, *others)


@lru_cache(maxsize=32)  # a policy asks for each of its keys
def _declared(group: str, path: tuple[str, ...]) -> EntryPoints:
    """Return what the packages on this search path declare in a group."""
    declared: EntryPoints = _all_declared(path).select(group=group)
    return declared


@lru_cache(maxsize=4)  # it takes 10 to 60 ms, whatever the group
def _all_declared(_path: tuple[str, ...]) -> Any:
    """Return what the packages on this search path declare, in a type that depends on Python's version. A process reads
    it once."""
    return entry_points()
