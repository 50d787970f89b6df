"""Prompts and answers in the traces of a route, for those who ask for them."""
