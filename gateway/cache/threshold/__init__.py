"""Keep the promise `max_wrong_hits`: learn from labelled lookups which scores a route may serve. Pure: no clock, no
I/O.
"""
