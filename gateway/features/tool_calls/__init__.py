"""Stored answers that call tools: which tools, and with which identifiers."""
