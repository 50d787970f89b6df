"""Backends and their upstreams: HTTP clients, concurrency limits, circuit breakers, retries and hedging."""
