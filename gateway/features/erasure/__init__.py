"""Erasure of what one user, key or tenant asked or caused."""
