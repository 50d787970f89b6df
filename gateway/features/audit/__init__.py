"""The audit trail of the admin port: its file, its list in the store, the admin operation and the command."""
