"""What was lately answered with something that may not be stored: whoever asks it again would wait in vain."""

from __future__ import annotations

from collections import OrderedDict

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
        self._limit = limit
        self._until: OrderedDict[str, float] = OrderedDict()  # in the order in which they are forgotten

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, fingerprint: str) -> bool:
        until = self._until.get(fingerprint)
        return until is not None and self._clock.monotonic() < until

    def add(self, fingerprint: str) -> None:
        """Remembers it from now on. Beyond the limit the oldest is forgotten, and so is what is over."""
        now = self._clock.monotonic()
        self._until.pop(fingerprint, None)
        self._until[fingerprint] = now + self._seconds
        while self._until and (len(self._until) > self._limit or next(iter(self._until.values())) <= now):
            self._until.popitem(last=False)

    def discard(self, fingerprint: str) -> None:
        """An answer to it has been stored."""
        self._until.pop(fingerprint, None)
