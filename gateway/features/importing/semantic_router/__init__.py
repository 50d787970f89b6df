"""Import of vLLM Semantic Router's config.yaml, version v0.3."""
