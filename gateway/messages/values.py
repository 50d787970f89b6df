"""Dataclasses that are frozen for the type checker, and cost nothing of it when they are made.

The constructor of a frozen dataclass goes around its own `__setattr__` for each field: 4.5 us for an `Entry`, 4.0 for a
`Request`, 3.7 for a `Provenance`, where one that assigns takes 0.5. A miss that is stored makes some twenty such
objects, 6 % of its CPU (docs/decisions/0042). mypy refuses to assign to a field, in all of the gateway and its tests;
at run time nobody looks.

What every miss makes is given its fields by position: for so many names CPython goes through a dictionary, and through
all parameters for each of them. An `Entry` takes 1.5 us by name and 0.4 by position, a `Request` of 22 fields 2.0 and
0.5 (docs/decisions/0054).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["changing", "value"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    import dataclasses

    def value(*, frozen, eq=True, slots=True):
        """As `dataclasses.dataclass`: equal and hashed by its fields where `eq` says so. `frozen` is always True: it is
        what mypy reads."""
        if not frozen:
            raise TypeError("a value is frozen")
        return dataclasses.dataclass(eq=eq, unsafe_hash=eq, slots=slots)


def changing(kind: type[T], *changes: str) -> Callable[..., T]:
    """Makes copies of a value of `kind` that differ in the fields `changes`, given in that order, for a quarter of what
    `replace` takes."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    values_of, places = attrgetter(*names), [*map(names.index, changes)]

    def changed(of: T, *to: Any) -> T:
        values = [*values_of(of)]
        for at, given in zip(places, to, strict=True):
            values[at] = given
        return kind(*values)

    return changed
