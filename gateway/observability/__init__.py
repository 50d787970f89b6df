"""What is seen: metrics, logs, traces, and the one place that writes them."""
