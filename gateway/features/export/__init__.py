"""Export and import of stored answers, as JSON lines."""
