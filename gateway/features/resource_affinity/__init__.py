"""Affinity of resources: a request that names a resource goes to the backend that made it."""
