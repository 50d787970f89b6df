"""Sockets to requests and back: limits, bytes, drain."""
