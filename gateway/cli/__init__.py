"""What `nearhit` does, one module a command."""
