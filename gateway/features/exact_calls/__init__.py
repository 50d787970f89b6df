"""The calls that pass through, and whose answers are cached by exact match."""
