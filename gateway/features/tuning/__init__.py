"""Tune the verifier on one's own labelled pairs: `nearhit tune`."""
