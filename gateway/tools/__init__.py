"""Tools outside the serving path: model build, distillation, demo, capacity plan and simulation."""
