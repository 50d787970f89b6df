"""The mapping of LiteLLM's proxy configuration to nearhit's."""
