"""Makes the weights that `gateway.cache.learned_verifier` loads. Not shipped: only what it writes is."""
