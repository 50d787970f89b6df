"""The choice of a backend: complexity, tiers, budgets, cascades, mirroring, rate limits, and what is learnt of them."""
