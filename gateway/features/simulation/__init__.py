"""Replays recorded traffic under a new policy (docs/simulate.md)."""
