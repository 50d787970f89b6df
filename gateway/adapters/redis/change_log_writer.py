"""What the gateway writes into the log of changes: beside what it tells of, in the same transaction or script.

One stream, `nearhit:1:changes`, of an entry a write. Its length has a bound, and the oldest entries go
(`XADD ... MAXLEN ~`): a gateway that has fallen behind them compares its index with the store instead
(docs/decisions/0022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.ports import ChangeKind

CHANGES = "nearhit:1:changes"
SPOKEN = "nearhit:1:spoken"
MOST_SPOKEN = 10_000  # 1.3 kB each at most: a label with its vector


@dataclass(frozen=True, slots=True)
class Journal:
    """`gateway` names who writes; `most`: entries of the stream, about."""

    gateway: str
    most: int

    def note(self, pipe: Any, kind: ChangeKind, *names: str) -> None:
        """Adds it to `pipe`, which the caller executes."""
        pipe.xadd(CHANGES, self._fields(kind, names), maxlen=self.most, approximate=True)

    def command(self, kind: ChangeKind, *names: str) -> list[str | int]:
        """The same as the words of a command, for scripts."""
        words = [word for pair in self._fields(kind, names).items() for word in pair]
        return ["XADD", CHANGES, "MAXLEN", "~", self.most, "*", *words]

    def _fields(self, kind: ChangeKind, names: Sequence[str]) -> dict[str, str]:
        return {"by": self.gateway, kind.value: " ".join(names)}
