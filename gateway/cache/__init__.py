"""Stored answers: keys, freshness, admission, lookup, verification, thresholds, purge, eviction, replication."""
