"""Tell the other gateways on a store which embedder this one has, and warn where theirs is another one.

Gateways with different embedders find each other's answers by their exact words only, and each start of one makes the
vectors of the others again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.cache.embedding_spaces import Spaces
from gateway.ports import Clock

LOG = logging.getLogger("nearhit.migration")
INTERVAL_S = 10.0
HEARD_S = 60.0  # an embedder that nobody has announced for this time is gone
MAX_OTHERS = 16  # embedders; one gateway with a fault must not fill the memory of the others


class EmbedderAnnouncements:
    """The embedders of the gateways on a store. `publish` sends this gateway's own one to the others."""

    def __init__(self, spaces: Spaces, publish: Callable[[str], None], clock: Clock) -> None:
        self._spaces = spaces
        self._publish = publish
        self._clock = clock
        self._heard: dict[str, float] = {}  # fingerprint of another embedder -> monotonic time

    @property
    def others(self) -> list[str]:
        """The fingerprints of other embedders that gateways on the store have now."""
        oldest = self._clock.monotonic() - HEARD_S
        return sorted(name for name, at in self._heard.items() if at >= oldest)

    def apply_event(self, fingerprint: str) -> None:
        """Note the embedder of another gateway."""
        if not self._spaces.is_open:  # it compares nothing, so no embedder differs
            return
        own = self._spaces.target.embedder.fingerprint
        if fingerprint in {space.embedder.fingerprint for space in self._spaces.all}:
            return
        others = self.others
        if fingerprint not in others:
            if len(others) >= MAX_OTHERS:
                return
            self._heard = {name: at for name, at in self._heard.items() if name in others}
            LOG.warning(
                "another gateway on the store has another embedder: neither finds the answers of the other by similar "
                "questions; give all of them the same one, or end the old ones after a change",
                extra={"fields": {"embedder": own, "other": fingerprint}},
            )
        self._heard[fingerprint] = self._clock.monotonic()

    async def run(self) -> None:
        """Announce this gateway's embedder, until cancelled."""
        while True:
            if self._spaces.is_open:
                self._publish(self._spaces.target.embedder.fingerprint)
            await asyncio.sleep(INTERVAL_S)
