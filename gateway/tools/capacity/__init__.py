"""What fleet some traffic takes, from measured unit costs. docs/scaling.md has the formulas."""
