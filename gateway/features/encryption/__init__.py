"""Encryption of the store's records: the command that rewrites them."""
