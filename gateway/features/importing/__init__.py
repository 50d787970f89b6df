"""Import of other gateways' configurations: reading, mapping, writing, and the report of what became of each line."""
