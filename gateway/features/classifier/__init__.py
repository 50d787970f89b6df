"""Classifiers of the operator's own, which score the complexity of texts: over HTTP, and on a Triton server."""
