"""Triton: models of a Triton server as backends, embedder, cross-encoder and classifier, and their care."""
