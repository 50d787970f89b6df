"""A policy that may be put in force: tried, applied, remembered, taken back."""
