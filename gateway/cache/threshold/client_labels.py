"""Labels by client, so that the labels of few clients do not lower the threshold of the others. Pure.

A client chooses its questions, and with them the labels of its misses. It could so teach a route that low scores are
right, and then have another answer of its own served. Therefore the labels of each other client count, for the client
that asks, for at most `SHARE` of all that count for it. Its own labels count in full. A route with one client learns as
if there were no bound. A client that has taught nothing is served at the cold threshold until four others have taught
the route. A lookup of no client in particular, as of an explanation or a forecast, counts all labels.

The labels of all together still count where they raise the threshold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]

SHARE = 0.25  # of the labels that count for a client: the most that those of one other client may be
MOST_CAPPED = int(1 / SHARE) - 1  # clients that can have more than that at once

MAX_CLIENTS = 64  # with labels of their own; those with the fewest count as one client together

TOGETHER = ""  # labels whose client is not known; for lookups, all clients together: every label counts

LabelRow = tuple[str, bytes, bytes]
"""A client, and its labels and the wrong ones by band, as float32."""


def label_limit(others: Iterable[float], own: float) -> float:
    """Return how many labels of each other client may count: the largest x = `SHARE` * (own + sum of min(n, x)).

    `others` has the number of labels of each other client. `own` is that of the client that asks.
    """
    ordered = sorted(others)
    counted, capped = own + sum(ordered), 0
    while ordered and capped < MOST_CAPPED and SHARE * counted < ordered[-1] * (1 - SHARE * capped):
        counted -= ordered.pop()
        capped += 1
    return max(0.0, SHARE * counted / (1 - SHARE * capped))


class ClientLabels:
    """The labels of a route by client and band. There are `bands` bands."""

    def __init__(self, bands: int) -> None:
        self._bands = bands
        self._rows: dict[str, FloatArray] = {}  # (2, bands): labels, and the wrong ones among them
        self._totals: dict[str, float] = {}  # labels
        self._limit: float | None = None  # of each client, for one that has no labels

    def add(self, client: str, band: int, wrong: float, weight: float = 1.0) -> None:
        if client not in self._rows and len(self._rows) >= MAX_CLIENTS:
            self._join_smallest()
        row = self._rows.get(client)
        if row is None:
            row = self._rows[client] = np.zeros((2, self._bands))
        row[:, band] += weight, weight * wrong
        self._totals[client] = self._totals.get(client, 0.0) + weight
        self._limit = None

    def fade(self, factor: float) -> None:
        for row in self._rows.values():
            row *= factor
        self._totals = {client: total * factor for client, total in self._totals.items()}
        self._limit = None

    def group(self, client: str) -> str | None:
        """Return the client, or None if the same labels count for it as for a client that has none."""
        if client == TOGETHER:
            return client
        if self._limit is None:
            self._limit = label_limit(self._totals.values(), 0.0)
        return client if self._totals.get(client, 0.0) > self._limit else None

    def view(self, client: str | None) -> FloatArray | None:
        """Return the labels that count for a client, shape (2, bands), or None if all do. `client` comes from
        `group`."""
        if client == TOGETHER:
            return None
        own = 0.0 if client is None else self._totals.get(client, 0.0)
        others = {name: total for name, total in self._totals.items() if name != client}
        limit = label_limit(others.values(), own)
        if all(total <= limit for total in others.values()):
            return None
        counted = np.zeros((2, self._bands))
        for name, row in self._rows.items():
            counted += row if name == client else row * min(1.0, limit / max(self._totals[name], 1e-12))
        return counted

    def rows(self) -> list[LabelRow]:
        """Return the labels for a snapshot."""
        return [(name, *(half.astype("<f4").tobytes() for half in row)) for name, row in self._rows.items()]

    def restore(self, rows: Sequence[LabelRow]) -> None:
        """Load the result of `rows`. Raise `ValueError` or `TypeError` where it cannot be read."""
        found = dict[str, FloatArray]()
        for name, labels, wrong in rows[: MAX_CLIENTS + 1]:
            row = np.stack([np.frombuffer(half, "<f4").astype(np.float64) for half in (labels, wrong)])
            if row.shape != (2, self._bands) or not ((row >= 0) & np.isfinite(row)).all():
                raise ValueError(f"labels of a client have shape {row.shape}, expected 2 rows of {self._bands} counts")
            found[str(name)] = row
        self._rows, self._limit = found, None
        self._totals = {name: float(row[0].sum()) for name, row in found.items()}

    def _join_smallest(self) -> None:
        """Count the client with the fewest labels among those that are not known."""
        name = min((name for name in self._rows if name != TOGETHER), key=self._totals.__getitem__)
        row, total = self._rows.pop(name), self._totals.pop(name)
        self._rows[TOGETHER] = self._rows.get(TOGETHER, 0.0) + row
        self._totals[TOGETHER] = self._totals.get(TOGETHER, 0.0) + total


def bounded_weights(weights: FloatArray, groups: NDArray[np.intp], own: int | None) -> FloatArray:
    """Return the weights of labelled lookups with those of each other client bounded to its share of them.

    `groups` has the number of the client of each lookup, from 0. `own` is the number of the client that asks, or None
    if it has none. The cost does not depend on the weights: it must not tell whether another client asked something
    near.
    """
    masses = np.bincount(groups, weights)
    others = masses if own is None else np.delete(masses, own)
    limit = label_limit(others.tolist(), 0.0 if own is None else float(masses[own]))
    factors = np.minimum(1.0, limit / np.maximum(masses, 1e-12))
    if own is not None:
        factors[own] = 1.0
    bounded: FloatArray = weights * factors[groups]
    return bounded
