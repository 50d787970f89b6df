"""The forms of replies. Each reader returns the value in a reply of its form, and raises an error in `UNREADABLE` for a
reply of any other form.

A proxy, another server or a damaged connection can send any form. A program that writes to the same keys can cause any.
redis-py passes most of them on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

# What reading a value of an unexpected type or form raises.
UNREADABLE = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)

K = TypeVar("K")
T = TypeVar("T")
Reader = Callable[[Any], T]


def nothing(_: Any) -> None:
    """Accept any reply, for a command whose reply says nothing."""


def data(reply: Any) -> bytes:
    if not isinstance(reply, bytes):
        raise TypeError(type(reply).__name__)
    return reply


def text(reply: Any) -> str:
    return data(reply).decode()


def number(reply: Any) -> int:
    """Return an integer. Servers send it as such, or as its digits."""
    if not isinstance(reply, int | bytes):
        raise TypeError(type(reply).__name__)
    return int(reply)


def count(reply: Any) -> int:
    value = number(reply)
    if value < 0:
        raise ValueError("a negative number of things")
    return value


def truth(reply: Any) -> bool:
    return bool(number(reply))


def optional(read: Reader[T]) -> Reader[T | None]:
    """Read a value that can be absent."""
    return lambda reply: None if reply is None else read(reply)


def list_of(read: Reader[T], length: int | None = None) -> Reader[list[T]]:
    """Read a list, of `length` items if that is known."""

    def read_list(reply: Any) -> list[T]:
        if not isinstance(reply, list | tuple):
            raise TypeError(type(reply).__name__)
        if length is not None and len(reply) != length:
            raise ValueError(f"{len(reply)} items instead of {length}")
        return [read(item) for item in reply]

    return read_list


def map_of(read_key: Reader[K], read: Reader[T]) -> Reader[dict[K, T]]:
    def read_map(reply: Any) -> dict[K, T]:
        if not isinstance(reply, dict):
            raise TypeError(type(reply).__name__)
        return {read_key(key): read(value) for key, value in reply.items()}

    return read_map


def last(read: Reader[T]) -> Reader[T]:
    """Read the last reply of a pipeline. The others say nothing."""
    return lambda replies: read(replies[-1])
