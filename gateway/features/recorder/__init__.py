"""The recorder of routes with `record`. `gateway.steps.recording` opens it, and a simulation reads its files."""
