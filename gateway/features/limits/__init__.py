"""Limits of routes and keys: the steps that enforce them, and the meter of calls, which also counts priced calls.

`gateway.steps.assembly` imports the steps for a route with limits, with a record, with a price, or with API keys.
"""
