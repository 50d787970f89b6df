"""The demo: a real Triton with two models, and the gateway before it."""
