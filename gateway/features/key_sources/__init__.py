"""API keys of backends that come from a file or from a command, and are read again."""
