"""Recorded traffic, and what would have become of it under another policy (docs/simulate.md)."""
