"""Makes the weights that `gateway.cache.verifiers` loads. Only the weights are shipped, not this package."""
