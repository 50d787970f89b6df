"""Benchmarks. `make bench` measures the cost of a request, as a ratio to a bare server in the same run."""
