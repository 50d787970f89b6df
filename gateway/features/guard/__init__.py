"""The guard of a route: a server of the operator's own that judges requests and answers."""
