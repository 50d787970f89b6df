"""The audit trail of the admin port: the command."""
