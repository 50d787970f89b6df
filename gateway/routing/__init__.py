"""Choose a backend: complexity, tiers, budgets, cascades, mirroring, rate limits, and learning from their outcomes."""
