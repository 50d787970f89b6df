"""`nearhit model`: builds of embedding models, and their export for Triton."""
