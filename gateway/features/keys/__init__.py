"""API keys in the store: the admin operations and the command. The core looks keys up (`gateway.steps.key_cache`)."""
