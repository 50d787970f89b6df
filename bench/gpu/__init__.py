"""Measures the gateway's models and its index on a GPU, in stages: `make gpu`, or `python -m bench.gpu`."""
