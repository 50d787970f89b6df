"""API keys of clients: the command."""
