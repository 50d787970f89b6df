"""Makes the weights that `gateway.cache.verifiers` loads. Not shipped: only what it writes is."""
