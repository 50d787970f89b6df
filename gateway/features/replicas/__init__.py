"""Several gateways on one store: they share events, leases, policies and figures, besides the stored answers.

The core has one port for them, `gateway.steps.fleet.Fleet`. A gateway that has its store to itself imports nothing
from here.
"""
