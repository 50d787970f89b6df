"""Measures the cache with `make quality`: its hits, the share of wrong hits, and whether promises are kept.

It is not a part of the gateway, but runs it.
"""
