"""What operators write: YAML that remembers its lines, units, and faults as sentences."""
