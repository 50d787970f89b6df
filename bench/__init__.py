"""`make bench`: what a request costs, as ratios to a bare server measured in the same run."""
