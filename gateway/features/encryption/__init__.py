"""Encryption of the store's records, and the command that rewrites them with a new key."""
