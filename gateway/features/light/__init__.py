"""Rolls out versions of a route's light model: step by step, by what audits say of each, with a way back."""
