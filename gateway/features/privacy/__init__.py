"""Personal data in requests: what the caches make of it."""
