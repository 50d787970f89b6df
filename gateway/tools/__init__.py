"""What does not run in a gateway: model build, distillation, demo, capacity plan, simulation."""
