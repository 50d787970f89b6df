"""Measures how much of the savings remains after evictions: Zipf replays within a budget of bytes, by policy.

`python -m bench.eviction`. Each row has the share of questions that hit and the share of dollars saved. The replay has
120,000 questions and 20,000 answers of log-normal length. Three answers in ten come from a model that costs 25 times as
much. With drift, a tenth of the answers swap popularity 19 times.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from gateway.cache.eviction import EvictionLedger

ANSWERS, QUESTIONS = 20_000, 120_000


class LRU:
    """Least recently used."""

    def __init__(self, room: float) -> None:
        self.room, self.used = room, 0
        self.kept: OrderedDict[int, int] = OrderedDict()

    def ask(self, answer: int, size: int, cost: float) -> bool:
        if answer in self.kept:
            self.kept.move_to_end(answer)
            return True
        self.kept[answer] = size
        self.used += size
        while self.used > self.room:
            self.used -= self.kept.popitem(last=False)[1]
        return False


class LFU:
    """Least frequently used since it was stored."""

    def __init__(self, room: float) -> None:
        self.room, self.used = room, 0
        self.uses: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.queue: list[tuple[int, int]] = []

    def ask(self, answer: int, size: int, cost: float) -> bool:
        hit = answer in self.uses
        self.uses[answer] = self.uses.get(answer, 0) + 1
        if hit:
            return True
        self.sizes[answer] = size
        self.used += size
        heapq.heappush(self.queue, (1, answer))
        while self.used > self.room:
            uses, oldest = heapq.heappop(self.queue)
            if self.uses[oldest] > uses:
                heapq.heappush(self.queue, (self.uses[oldest], oldest))
                continue
            del self.uses[oldest]
            self.used -= self.sizes.pop(oldest)
        return False


class OwnPolicy:
    """The gateway's own: what its hits save a byte, aged."""

    def __init__(self, room: float) -> None:
        self.room, self.ledger = int(room), EvictionLedger()

    def ask(self, answer: int, size: int, cost: float) -> bool:
        name = str(answer)
        if name in self.ledger:
            self.ledger.used(name)
            return True
        self.ledger.put(name, size, cost, 0)
        for _ in self.ledger.pop_surplus(ANSWERS, self.room):
            pass
        return False


def questions(skew: float, drift: bool) -> NDArray[np.int64]:
    draw = np.random.default_rng(7)
    weights = 1 / np.arange(1, ANSWERS + 1) ** skew
    ranks = draw.choice(ANSWERS, QUESTIONS, p=weights / weights.sum())
    order = draw.permutation(ANSWERS)
    asked = np.empty(QUESTIONS, np.int64)
    for i, rank in enumerate(ranks):
        if drift and i and i % (QUESTIONS // 20) == 0:
            some = draw.choice(ANSWERS, ANSWERS // 10, replace=False)
            order[some] = order[draw.permutation(some)]
        asked[i] = order[rank]
    return asked


def main() -> None:
    draw = np.random.default_rng(1)
    tokens = np.clip(draw.lognormal(5, 1, ANSWERS), 5, 4000)
    sizes = (tokens * 5 + 900).astype(int)
    costs = tokens * np.where(draw.random(ANSWERS) < 0.3, 10.0, 0.4) / 1e6
    print(
        f"{'skew':>5} {'drift':>5} {'room':>5}  " + "  ".join(f"{kind.__name__:>13}" for kind in (LRU, LFU, OwnPolicy))
    )
    rows = []
    for skew in (0.8, 1.0, 1.2):
        for drift in (False, True):
            asked = questions(skew, drift)
            for room in (0.05, 0.2):
                row = []
                for kind in (LRU, LFU, OwnPolicy):
                    cache = kind(sizes.sum() * room)
                    hit = np.array([cache.ask(int(a), int(sizes[a]), float(costs[a])) for a in asked])
                    row += [hit.mean(), costs[asked][hit].sum() / costs[asked].sum()]
                rows.append(row)
                print(f"{skew:>5} {drift!s:>5} {room:>5.0%}  " + _format(row))
    print(f"{'mean':>17}  " + _format(list(np.mean(rows, axis=0))))


def _format(row: list[float]) -> str:
    return "  ".join(f"{hits:>6.1%}/{saved:>6.1%}" for hits, saved in zip(row[::2], row[1::2], strict=True))


if __name__ == "__main__":
    main()
