"""Mirroring: a share of the misses also goes to another backend, whose answers no client gets."""
