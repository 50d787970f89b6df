"""Replays recorded traffic under another policy (docs/simulate.md)."""
