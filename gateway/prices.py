"""The price of a call."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol


class Unit(StrEnum):
    """A quantity that providers bill besides tokens: the key of `price` for it."""

    IMAGE = "per_image"
    MINUTE = "per_minute"  # of sound, or of an open WebSocket
    SECOND = "per_second"  # of video
    CHARACTERS = "per_million_characters"  # of a text that is spoken
    SEARCH = "per_search"  # a query with up to 100 documents to sort


class Tokens(NamedTuple):
    """The tokens of a call. Cached and written tokens are part of the input, and reasoning is part of the output."""

    input: int = 0
    output: int = 0
    cached: int = 0  # read from the backend's prompt cache
    written: int = 0  # written to it
    reasoning: int = 0


class Tariff(Protocol):
    """The charges of a backend."""

    @property
    def charges(self) -> bool:
        """Whether some call may cost something."""

    def price(self, model: str) -> Price:
        """Return the price of a call now, by the model that its client names. `Price.is_stated` tells whether there is
        one."""


@dataclass(frozen=True, slots=True)
class Price:
    """A price in US dollars: per million tokens, per call, and per unit of what else a call makes."""

    input_per_million: float = 0.0
    output_per_million: float = 0.0
    cached_input_per_million: float | None = None  # None if cached input costs as much as other input
    per_call: tuple[tuple[str, float], ...] = ()  # globs of paths, each with the dollars of a call; the first counts
    per_unit: tuple[tuple[Unit, float], ...] = ()  # dollars
    written_input_per_million: float | None = None  # None if input that goes to a prompt cache costs as much as other
    reasoning_per_million: float | None = None  # None if reasoning costs as much as other output
    above: tuple[tuple[int, Price], ...] = ()  # input tokens, ascending; a call with more has that price as a whole
    is_stated: bool = field(default=True, compare=False)  # unset if nobody has said what the calls cost

    @property
    def charges(self) -> bool:
        """Whether a call may cost something."""
        return self != FREE

    def price(self, model: str) -> Price:
        """Return itself, as the tariff of a backend whose models all cost the same."""
        return self

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

    def of_answer(self, path: str, tokens: Tokens, unit: Unit | None = None, amount: float = 0.0) -> float:
        """Return the dollars of an answer: of its call, and of its units if they have a price, else of its tokens."""
        dollars, per_unit = self.of_call(path) or 0.0, self.of_unit(unit)
        return dollars + (self.of(*tokens) if per_unit is None else per_unit * amount)

    def of(
        self,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        written_tokens: int = 0,
        reasoning_tokens: int = 0,
    ) -> float:
        """Return the dollars of the tokens of a call (`Tokens`)."""
        for start, price in reversed(self.above):
            if input_tokens > start:
                return price.of(input_tokens, output_tokens, cached_tokens, written_tokens, reasoning_tokens)
        dollars = input_tokens * self.input_per_million + output_tokens * self.output_per_million
        cached = min(cached_tokens, input_tokens)
        written, reasoning = min(written_tokens, input_tokens - cached), min(reasoning_tokens, output_tokens)
        if cached and self.cached_input_per_million is not None:
            dollars -= cached * (self.input_per_million - self.cached_input_per_million)
        if written and self.written_input_per_million is not None:
            dollars += written * (self.written_input_per_million - self.input_per_million)
        if reasoning and self.reasoning_per_million is not None:
            dollars += reasoning * (self.reasoning_per_million - self.output_per_million)
        return dollars / 1e6


FREE = Price()
UNPRICED = Price(is_stated=False)
"""The price of a backend without any: its calls count as free, and are shown as not priced."""
