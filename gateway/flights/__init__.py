"""Answers on their way, shared by all who ask: here, and over the gateways on a store."""
