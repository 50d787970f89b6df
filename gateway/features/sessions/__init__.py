"""Sessions: a conversation keeps to its backend."""
