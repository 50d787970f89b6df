"""Metrics, logs and traces, and the one place that writes them."""
