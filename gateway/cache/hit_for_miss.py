"""What was lately answered with something that may not be stored: whoever asks it again would wait in vain."""

from __future__ import annotations

from gateway.bounded_cache import BoundedCache
from gateway.ports import Clock

# Long enough that a crowd which keeps coming is not held up again and again, short enough that a backend which has
# recovered is asked once for all again soon. Varnish remembers for 120 s by default, and forgets at once, as here,
# when an answer can be stored.
REMEMBERED_S = 10.0
MAX_REMEMBERED = 10_000  # fingerprints: 2 MB


class Unstorable:
    """Hit-for-miss: fingerprints whose requests are neither made to follow each other nor held behind a lease."""

    def __init__(self, clock: Clock, *, seconds: float = REMEMBERED_S, limit: int = MAX_REMEMBERED) -> None:
        self._clock = clock
        self._seconds = seconds
        self._until: BoundedCache[str, float] = BoundedCache(limit)  # in the order in which they are forgotten

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, fingerprint: str) -> bool:
        until = self._until.peek(fingerprint)
        return until is not None and self._clock.monotonic() < until

    def add(self, fingerprint: str) -> None:
        """Remembers it from now on. Beyond the limit the oldest is forgotten, and so is what is over."""
        self._until.put(fingerprint, self._clock.monotonic() + self._seconds)
        while (oldest := next(iter(self._until))) not in self:
            self._until.pop(oldest)

    def discard(self, fingerprint: str) -> None:
        """An answer to it has been stored."""
        self._until.pop(fingerprint)
