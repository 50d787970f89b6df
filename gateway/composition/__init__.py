"""The composition root's parts: builds what the configuration names."""
