"""The Model Context Protocol: which results of servers are stored, for how long, and for whom."""
