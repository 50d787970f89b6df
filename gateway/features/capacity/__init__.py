"""Plans the fleet that some traffic needs, from measured unit costs. docs/scaling.md has the formulas."""
