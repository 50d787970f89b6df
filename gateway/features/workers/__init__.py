"""Gateways in several processes: the supervisor of `nearhit serve` with `server.workers` above 1, `nearhit restart`."""
