"""This machine and its network: clock, processes, files, TLS, outgoing webhooks and telemetry."""
