"""API keys in the store: their records, the lookup, the step that requires one, the admin operations, the command."""
