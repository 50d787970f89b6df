"""The demo: a real Triton server with two answering models, behind the gateway."""
