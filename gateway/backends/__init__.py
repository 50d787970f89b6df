"""A backend as the routes see it: its upstreams, how each fares, which one is asked."""
