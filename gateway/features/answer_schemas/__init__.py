"""Answer schemas: whether an answer fits the JSON Schema that its request names."""
