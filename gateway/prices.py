"""The price of a call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase


class Unit(StrEnum):
    """A quantity that providers bill besides tokens: the key of `price` for it."""

    IMAGE = "per_image"
    MINUTE = "per_minute"  # of sound, or of an open WebSocket
    SECOND = "per_second"  # of video
    CHARACTERS = "per_million_characters"  # of a text that is spoken


@dataclass(frozen=True, slots=True)
class Price:
    """A price in US dollars: per million tokens, per call, and per unit of what else a call makes."""

    input_per_million: float = 0.0
    output_per_million: float = 0.0
    cached_input_per_million: float | None = None  # None if cached input costs as much as other input
    per_call: tuple[tuple[str, float], ...] = ()  # globs of paths, each with the dollars of a call; the first counts
    per_unit: tuple[tuple[Unit, float], ...] = ()  # dollars

    @property
    def has_tokens(self) -> bool:
        """Whether tokens have a price."""
        return self.input_per_million > 0 or self.output_per_million > 0

    def of_call(self, path: str, *, named: bool = False) -> float | None:
        """Return the dollars of a call of a path besides its tokens, or None if none are stated. With `named`, a glob
        that fits all paths does not count."""
        for glob, dollars in self.per_call:
            if fnmatchcase(path, glob) and not (named and glob == "*"):
                return dollars
        return None

    def of_unit(self, unit: Unit | None) -> float | None:
        """Return the dollars of one unit, a character or a second among them, or None if it has no price."""
        scale = 1e-6 if unit is Unit.CHARACTERS else 1 / 60 if unit is Unit.MINUTE else 1.0
        return next((scale * dollars for priced, dollars in self.per_unit if priced is unit), None)

    def of(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """Return the dollars of a call. `cached_tokens` are those of `input_tokens` that a prompt cache supplied."""
        dollars = input_tokens * self.input_per_million + output_tokens * self.output_per_million
        if cached_tokens and self.cached_input_per_million is not None:
            discount = self.input_per_million - self.cached_input_per_million
            dollars -= min(cached_tokens, input_tokens) * discount
        return dollars / 1e6
