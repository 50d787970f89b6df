"""Cascades: the lightest model is tried first, and its answer is served if a check accepts it."""
