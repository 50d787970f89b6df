"""Makes the weights that `gateway.cache.learned` loads. Not shipped: only what it writes is."""
