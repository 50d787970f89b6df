"""Sockets to requests and back: limits, bytes, drain, and the fast path in front of the stages."""
