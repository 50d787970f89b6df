"""Spend of routes with `spend`: who spent how much on which model, and the savings of hits, by hours in the store."""
