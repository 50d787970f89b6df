"""Asynchronous inference: requests that are accepted at once and answered later.

`model`, `outcome`, `submission`, `signing` and `targets` decide and do no I/O; `workers`, `runner` and `deliveries`
act; `store` is the port to where jobs lie.
"""
