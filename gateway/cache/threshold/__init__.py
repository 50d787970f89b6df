"""Holds `max_wrong_hits`: learns from labelled lookups which scores a route may serve. Pure: no clock, no I/O."""
