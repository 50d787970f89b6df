"""Quantiles of what was counted by bucket."""

from __future__ import annotations

from collections.abc import Sequence


def quantile_of(counts: Sequence[float], bounds: Sequence[float], q: float) -> float | None:
    """Of counts by bucket, one more than `bounds` (their upper ends): linear within the bucket, as Prometheus'
    histogram_quantile does. None without observations."""
    rank, seen = q * sum(counts), 0.0
    for i, count in enumerate(counts):
        if count and seen + count >= rank:
            low = bounds[i - 1] if i else 0.0
            high = bounds[i] if i < len(bounds) else low
            return low + (high - low) * (rank - seen) / count
        seen += count
    return None
