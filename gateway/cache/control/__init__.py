"""Holds `max_wrong_hits`: learns from labelled lookups which scores may be served on a route. Pure; no clock, no I/O."""
