"""Export and import of stored answers: the commands."""
