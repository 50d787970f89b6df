"""Tokens put together to a text, piece by piece: no half sign leaves, nor what may begin a stop string. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.messages import Token

Decode = Callable[[int], str | None]
"""The next token -> what it adds to the text; None while its sign is not complete."""


class Writing:
    """One answer. Its pieces add up to the same text however they are read."""

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        self._decode = decode
        self._stops = stops
        self._held = ""  # decoded, and not yet out
        self._waiting: list[tuple[Token, int, int]] = []  # with how long the text was before and after each
        self._decoded = self._out = 0  # characters
        self.stopped = False  # at a stop string, which is no part of the text

    def add(self, number: int, token: Token) -> tuple[str, tuple[Token, ...]]:
        """-> (the text that may go out now, the tokens that it is made of). Nothing is added once it has stopped."""
        said = self._decode(number) or ""
        self._waiting.append((token, self._decoded, self._decoded + len(said)))
        self._decoded += len(said)
        text = self._held + said
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._release(text, min(found))
        return self._release(text, len(text) - _may_begin(text, self._stops))

    def end(self) -> tuple[str, tuple[Token, ...]]:
        """What was held back. Of a sign that never was completed nothing is said."""
        if self.stopped:
            return "", ()
        text, tokens = self._release(self._held, len(self._held))
        rest, self._waiting = tuple(token for token, _, _ in self._waiting), []
        return text, tokens + rest

    def _release(self, text: str, length: int) -> tuple[str, tuple[Token, ...]]:
        """The first `length` characters, with the tokens that end there; at a stop also the one that runs into it."""
        self._held, self._out = text[length:], self._out + length
        ready = 0
        for _, start, end in self._waiting:
            if end > self._out and not (self.stopped and start < self._out):
                break
            ready += 1
        tokens = tuple(token for token, _, _ in self._waiting[:ready])
        del self._waiting[:ready]
        return text[:length], tokens


def _may_begin(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` a stop string may begin with."""
    return max(
        (
            length
            for stop in stops
            for length in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:length])
        ),
        default=0,
    )
