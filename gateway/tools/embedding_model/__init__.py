"""Builds and fetches the embedding model."""
