"""The cache: keys, freshness, admission, lookup, verification, thresholds, purge, eviction, replication."""
