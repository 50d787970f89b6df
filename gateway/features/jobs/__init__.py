"""Jobs, which are answered later: the command."""
